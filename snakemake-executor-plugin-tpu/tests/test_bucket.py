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


def test_transfers_are_repeated_after_trouble_of_the_server(serve, tmp_path):
    pauses = (0.0, 0.0, 0.0)
    path, said = tmp_path / "env.tar", []
    trouble = ((503, b""), (429, b""), (200, b"half", 4))
    one = bucket.Bucket("gs://b/f", serve(*trouble, (200, b"complete"), *trouble, (200, b"half", 4)), pauses)
    assert one.download("env.tar", path, said.append)
    assert path.read_bytes() == b"complete"
    assert said[-1] == "Downloading env.tar (0 MB)"
    # what the controller takes for a trouble that passes, not for a wrong setting
    with pytest.raises(OSError, match=r"\[Errno 5\] gs://b does not answer \(4 bytes are missing\)"):
        one.download("env.tar", path, said.append)
    policy = b'{"error": {"message": "subject to bucket\'s retention policy"}}'
    one = bucket.Bucket("gs://b", serve((404, b""), (403, policy), (500, b""), (200, b"{}")), pauses)
    assert not one.download("env.tar", path, said.append)
    with pytest.raises(RuntimeError, match="answers 403 .*subject to bucket's retention policy"):
        one.download("env.tar", path, said.append)
    with open(path, "rb") as file:
        assert one.put("env.tar", file, path.stat().st_size) == {}


def test_a_broken_answer_does_not_end_the_guard(serve):
    """http.client reports it by an error that is no OSError."""
    with pytest.raises(OSError, match="IncompleteRead"):
        guard.ask(serve((200, b"half", 4)))
