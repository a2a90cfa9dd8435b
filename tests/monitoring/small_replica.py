"""A replica of an end point in little, as a process of its own: `python small_replica.py PORT`."""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = b'{"predictions": {"output": [[1.0]]}}'
WORK_S = 0.01


class Handler(BaseHTTPRequestHandler):
    """Answers everybody alike."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """HAProxy looks whether it is up."""
        self.answer(b"up")

    def do_POST(self) -> None:
        """A request for the model's answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(WORK_S)
        self.answer(ANSWER)

    def answer(self, body: bytes) -> None:
        """Status 200 and this."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
