"""What hosts read and write with the standard library only, against servers in trouble."""

import pytest

from snakemake_executor_plugin_tpu.emulator.web import Handler, HttpServer
from snakemake_executor_plugin_tpu.worker import bucket, guard


@pytest.fixture
def serve():
    """Return a function that starts a server, which gives these answers in turn, and returns its address."""
    servers = []

    def start(*answers) -> str:
        left = list(answers)

        class Answers(Handler):
            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, content, cut = (*left.pop(0), 0)[:3]
                self.send_response(status)
                self.send_header("Content-Length", str(len(content) + cut))
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = True

            do_POST = do_GET

        servers.append(HttpServer(("127.0.0.1", 0), Answers))
        servers[-1].start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.stop()


def test_uploads_are_repeated_after_trouble_of_the_server(serve):
    pauses = (0.0, 0.0, 0.0)
    trouble = ((503, b""), (429, b""), (200, b"{", 4))
    one = bucket.Bucket("gs://b/f", serve(*trouble, (200, b"{}"), *trouble, (200, b"{", 4)), pauses)
    assert one.put("record", b"text") == {}
    # what the controller takes for a trouble that passes, not for a wrong setting
    with pytest.raises(OSError, match=r"\[Errno 5\] gs://b does not answer \(IncompleteRead"):
        one.put("record", b"text")
    policy = b'{"error": {"message": "subject to bucket\'s retention policy"}}'
    missing = b'{"error": {"message": "The specified bucket does not exist."}}'
    one = bucket.Bucket("gs://b", serve((403, policy), (404, missing)), pauses)
    with pytest.raises(RuntimeError, match="answers 403 .*subject to bucket's retention policy"):
        one.put("record", b"text")
    with pytest.raises(RuntimeError, match="answers 404 .*bucket does not exist"):
        one.put("record", b"text")


def test_a_broken_answer_does_not_end_the_guard(serve):
    """http.client reports it by an error that is no OSError."""
    with pytest.raises(OSError, match="IncompleteRead"):
        guard.ask(serve((200, b"half", 4)))
