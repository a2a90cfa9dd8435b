"""Receives Alertmanager's messages: an alert counts once somebody was told of it. Called by `monitoring.beside`."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from proving_ground.bench.servers import HERE
from proving_ground.monitoring.rules import WATCHDOG


@dataclass(frozen=True)
class Message:
    """One alert that somebody was told of."""

    t: float  # when (monotonic)
    state: str  # firing or resolved
    labels: dict[str, str]
    annotations: dict[str, str]
    since_wall_s: float  # since when it has been firing, by Prometheus' clock

    @property
    def alert(self) -> str:
        """Its name."""
        return self.labels.get("alertname", "")


class Handler(BaseHTTPRequestHandler):
    """Takes messages."""

    server: Inbox

    def do_POST(self) -> None:
        """One message, which may have several alerts."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self.server.take(json.loads(body))
            status = 200
        except (ValueError, KeyError, TypeError):
            status = 400
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Messages are kept, not printed."""


class Inbox(ThreadingHTTPServer):
    """The server and what it got."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((HERE, 0), Handler)
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    @property
    def url(self) -> str:
        """Where messages go."""
        return f"http://{HERE}:{self.server_address[1]}/"

    def take(self, document: dict[str, Any]) -> None:
        """Keep every alert of a message but the watchdog's, which is no news as long as it comes."""
        now = time.monotonic()
        for alert in [it for it in document["alerts"] if it["labels"].get("alertname") != WATCHDOG]:
            since = datetime.fromisoformat(alert["startsAt"]).timestamp()
            self.messages.put(Message(now, alert["status"], alert["labels"], alert.get("annotations", {}), since))

    def new(self) -> Iterator[Message]:
        """What came since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self.messages.get_nowait()


@contextlib.contextmanager
def receiving() -> Iterator[Inbox]:
    """An inbox that receives."""
    inbox = Inbox()
    thread = threading.Thread(target=inbox.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield inbox
    finally:
        inbox.shutdown()
        inbox.server_close()
