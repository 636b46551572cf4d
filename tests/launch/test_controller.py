"""What the controlling process tells others."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from snakemake.cli import get_argument_parser
from snakemake.settings.types import MaxJobsPerTimespan, SchedulingSettings

from trm.launch.controller import lift_default_rate_limit, post


@pytest.mark.parametrize(("rate", "kept"), [(None, False), ("5/1m", True), ("200/1s", True)])
def test_the_default_rate_limit_is_lifted_and_the_users_is_kept(rate, kept):
    rate = rate or get_argument_parser().get_default("max_jobs_per_timespan")
    settings = SchedulingSettings(max_jobs_per_timespan=MaxJobsPerTimespan.parse_choice(rate))
    lift_default_rate_limit(settings)
    assert (settings.max_jobs_per_timespan is not None) == kept


def test_a_line_goes_to_the_webhook(monkeypatch, capsys):
    got = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            pass

    post("nobody listens")  # no variable: nothing is sent
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        monkeypatch.setenv("TRM_WEBHOOK", f"http://127.0.0.1:{server.server_port}/secret")
        post("the study failed")
        thread.join()
    (message,) = got
    assert message["text"].endswith(": the study failed")
    for address in ("nonsense/secret", "http://127.0.0.1:1/secret\x7f"):  # the latter is an HTTPException
        monkeypatch.setenv("TRM_WEBHOOK", address)
        post("the study failed")
    said = capsys.readouterr().err
    assert "TRM_WEBHOOK could not be reached" in said
    assert "secret" not in said
