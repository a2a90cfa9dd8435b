"""Tells which replicas of an end point answer, into the record of a load. Called by `serving.load`.

Where HAProxy stands before them, it is asked: it looks after each replica twice a second, so one that hangs is down,
too. A replica by itself is up as long as its process lives.
"""

from __future__ import annotations

import contextlib
import csv
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from proving_ground.bench.rundir import RunDir
from proving_ground.serving.servers import SOCKET, EndPoint
from proving_ground.training.events import EventWriter

EVENTS = "replicas.jsonl"
LOOK_S = 0.25
ASK = b"show stat -1 4 -1\n"
"""HAProxy's table, of all proxies (-1) their servers (4)."""
ANSWER_S = 2.0


@contextlib.contextmanager
def told(end_point: EndPoint | None, run: RunDir) -> Iterator[None]:
    """Meanwhile every change of what is up is an event; of an end point that is not ours nothing is known."""
    if end_point is None:
        yield
        return
    writer, stop = EventWriter(run.events / EVENTS), threading.Event()
    thread = threading.Thread(target=tell, args=(end_point, writer, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        writer.close()


def tell(end_point: EndPoint, writer: EventWriter, stop: threading.Event) -> None:
    """Look, and write what has changed, until asked to stop."""
    before: list[str] | None = None
    while not stop.wait(LOOK_S):
        now = up(end_point)
        if now != before:
            writer.emit("replicas", planned=len(end_point.replicas), up=len(now), names=now)
        before = now


def up(end_point: EndPoint) -> list[str]:
    """The replicas that answer."""
    if end_point.proxy is None:
        return [it.name for it in end_point.replicas if it.process.poll() is None]
    try:
        return seen_up(end_point.logs / SOCKET)
    except OSError:  # nobody gets through without HAProxy
        return []


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A folder's file descriptor."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def seen_up(place: Path) -> list[str]:
    """The replicas that HAProxy sends requests to.

    Raises:
        OSError: it does not answer.
    """
    with socket.socket(socket.AF_UNIX) as asked, opened(place.parent) as folder:
        asked.settimeout(ANSWER_S)
        asked.connect(f"/proc/self/fd/{folder}/{place.name}")  # a path of its own may be too long for a socket
        asked.sendall(ASK)
        text = b"".join(iter(lambda: asked.recv(1 << 16), b"")).decode()
    rows = csv.DictReader(text.removeprefix("# ").splitlines())
    return [it["svname"] for it in rows if it["status"].startswith("UP")]
