"""A small end point for tests: each says in a function how it answers a POST."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from proving_ground.bench.servers import HERE


@contextlib.contextmanager
def end_point(
    answer: Callable[[BaseHTTPRequestHandler, bytes], tuple[int, bytes] | None], certificate: Path | None = None
) -> Iterator[str]:
    """An end point's address; where `answer` gives None, the connection is closed without one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found = answer(self, body)
            self.close_connection = found is None
            if found is None:
                return
            self.send_response(found[0])
            self.send_header("Content-Length", str(len(found[1])))
            self.end_headers()
            self.wfile.write(found[1])

    server = ThreadingHTTPServer((HERE, 0), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http{'s' if certificate else ''}://{HERE}:{server.server_port}/score"
    finally:
        server.shutdown()
        server.server_close()
