"""A real HTTP server on loopback that keeps what is sent to it. Used by the tests of logs and traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Receiver:
    """What came in: (path, content type, body); `answers` are given first, then always `otherwise`."""

    url: str = ""
    got: list[tuple[str, str, bytes]] = field(default_factory=list)
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    otherwise: tuple[int, bytes] = (204, b"")


@contextmanager
def receiver(otherwise: tuple[int, bytes] = (204, b"")) -> Iterator[Receiver]:
    """A server that runs until the block ends."""
    kept = Receiver(otherwise=otherwise)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.got.append((self.path, self.headers["Content-Type"], body))
            status, answer = kept.answers.pop(0) if kept.answers else kept.otherwise
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        kept.url = f"http://127.0.0.1:{server.server_port}"
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
