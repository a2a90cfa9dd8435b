"""The exporter: follows a run's event files and answers scrapes. `pg monitoring export RUN`.

A process of its own: the trainer has no HTTP server and knows nothing of it. Started before, during or after a run, and
again at any time: all it knows is in the files. `runs/<suite>/latest` is followed to each new run.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from proving_ground.bench.rundir import RunDir, RunDirError, in_progress
from proving_ground.monitoring import endpoints, searches
from proving_ground.monitoring.board import Board
from proving_ground.monitoring.follow import Follower
from proving_ground.monitoring.gpu import Gpus
from proving_ground.monitoring.intake import Intake
from proving_ground.monitoring.node import put_node, space
from proving_ground.monitoring.taker import Taker

POLL_S = 0.25
BATCH = 500  # events taken in before a waiting scrape gets its turn
STUCK_S = 30.0  # without a look at the files: not healthy
QUIET_S = 30.0  # without an event before anybody asks whether the harness still lives
FORGOTTEN_S = 7200.0  # without an event: a job without the harness was cut off
READING = "what was told so far is still being read"


@dataclass(eq=False)  # a registry holds it by identity
class Watched(Collector):
    """A run that is being watched, whichever `path` means at the moment, and its board."""

    path: Path  # of a run, or a link to one
    price: float = 0.0  # dollars an hour of one node; 0: not known
    board: Board = field(default_factory=Board)
    looked_t: float = 0.0  # when the files were last looked at (monotonic)
    why_not: str = "not looked yet"  # why there is nothing to tell; empty once there is
    whole: bool = False  # all that a run told so far is taken in
    _run: RunDir | None = None
    _follower: Follower | None = None
    _taker: Taker | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._host = os.uname().nodename
        self._gpus = Gpus(self.board, self._host)

    def poll(self) -> int:
        """Take in what is new; how many events that was."""
        begin = time.monotonic()
        try:
            self._find()
            self.why_not = ""
        except RunDirError as error:
            self.why_not = str(error)
        taken = 0
        if self._follower and self._taker and self._run:
            sealed = (self._run.path / "seal.json").exists()  # before what is new: nothing follows a seal
            new = self._follower.new()
            while batch := list(islice(new, BATCH)):
                with self._lock:
                    for record in batch:
                        self._taker.take(record)
                taken += len(batch)
            if not taken or sealed:
                self._end(self._taker, self._follower, over=sealed or self._left(self._run))
        self.whole = True
        self.looked_t = time.monotonic()
        self.board.set("exporter_poll_seconds", (), self.looked_t - begin)
        return taken

    def _left(self, run: RunDir) -> bool:
        """Whether the harness of a run is gone: a live one writes every few seconds, and holds the run's lock."""
        if not (self._taker and self._taker.lock and self._follower):
            return False
        return self._follower.silent_s() > QUIET_S and not in_progress(run, self._taker.lock)

    def _end(self, taker: Taker, follower: Follower, *, over: bool) -> None:
        """Put away the jobs that nobody works at any more."""
        silent = [trial for trial in taker.jobs if taker.bare and follower.silent_s(trial) > FORGOTTEN_S]
        with self._lock:
            if over:
                taker.sealed()
            for trial in silent:
                taker.forget(trial)

    def _find(self) -> None:
        """See which run it is; a new one puts the old one's series away.

        Raises:
            RunDirError: there is none (yet).
        """
        target = self.path.resolve()
        if self._run and target == self._run.path:
            return
        run = RunDir(target)
        taker = taker_of(run, self.board, self.price)
        self.whole = False
        with self._lock:
            if self._run and self._follower:
                self._follower.close()
                self.board.drop_job(name_of(self._run))
            self._run, self._follower, self._taker = run, Follower(run), taker

    def collect(self) -> Iterator[Family]:
        """All series now: what events told, and what machine and GPUs tell at this moment."""
        with self._lock:
            put_node(self.board, self._host, self.path.parent)
            self._gpus.read()
            self._checkpoint_disks()
            if self._follower and self._taker and self._run:
                refused = self._follower.refused + self._taker.refused
                self.board.set("exporter_lines_refused_total", (name_of(self._run),), refused)
            yield from self.board.families()

    def _checkpoint_disks(self) -> None:
        for job in self._taker.jobs.values() if self._taker else ():
            if job.disk_told or not job.folder:
                continue
            with contextlib.suppress(OSError):
                size, free = space(job.folder)
                self.board.set("checkpoint_disk_size_bytes", job.labels, size)
                self.board.set("checkpoint_disk_free_bytes", job.labels, free)

    @property
    def trials(self) -> set[str]:
        """The jobs that are in progress."""
        return set(self._taker.jobs) if self._taker else set()

    def close(self) -> None:
        """Let go of the files."""
        if self._follower:
            self._follower.close()


def taker_of(run: RunDir, board: Board, price: float) -> Taker:
    """What takes a directory's events in: a run's, a search's, a load's, or those of trainers alone.

    Raises:
        RunDirError: it is none of them.
    """
    name, there = name_of(run), {it.stem for it in run.path.glob("*.json")}
    if searches.DOCUMENT in there and is_ours(found := run.read(searches.DOCUMENT), "search"):
        return searches.Searches(board, name, found["search"], clock_of(run))
    if endpoints.DOCUMENT in there and is_ours(found := run.read(endpoints.DOCUMENT), "orders"):
        return endpoints.EndPoints(board, name, found, clock_of(run))
    if "plan" not in there and any(run.events.glob("*.*.jsonl")):
        return Intake(board, name, {}, None, price)
    return Intake(board, name, run.read("plan"), clock_of(run), price)


def is_ours(document: object, key: str) -> bool:
    """Whether a document is one that we write; a trainer may have a file of that name."""
    return isinstance(document, dict) and key in document


def clock_of(run: RunDir) -> Mapping[str, float]:
    """A run's two clocks, read together.

    Raises:
        RunDirError: nobody has written them down.
    """
    provenance = run.read("provenance")
    return {"wall_s": float(provenance["wall_s"]), "t": float(provenance["t"])}


def name_of(run: RunDir) -> str:
    """The value of the label `run`."""
    return f"{run.suite}/{run.run_id}"


class Handler(BaseHTTPRequestHandler):
    """Answers /metrics, /healthz and /readyz."""

    server: Server

    def do_GET(self) -> None:
        """One request."""
        status, text, kind = self.server.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Scrapes are no news."""


class Server(ThreadingHTTPServer):
    """The HTTP server of one watched run."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], watched: Watched) -> None:
        super().__init__(address, Handler)
        self._watched = watched
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(watched)

    def answer(self, path: str) -> tuple[int, bytes, str]:
        """Status, body and content type for a path.

        While a run's past is taken in there are no metrics: counters that grow from nothing would be news to alerts.
        """
        text = "text/plain; charset=utf-8"
        if path == "/metrics" and not self._watched.whole:
            return 503, f"{READING}\n".encode(), text
        if path == "/metrics":
            return 200, generate_latest(self._registry), CONTENT_TYPE_LATEST
        silent_s = time.monotonic() - self._watched.looked_t
        if path == "/healthz":
            words = f"no look at the files for {silent_s:.0f} s" if silent_s > STUCK_S else "ok"
        elif path == "/readyz":
            words = self._watched.why_not or ("ok" if self._watched.whole else READING)
        else:
            return 404, b"allowed: /metrics, /healthz, /readyz\n", text
        return (200 if words == "ok" else 503), f"{words}\n".encode(), text


@contextlib.contextmanager
def serving(watched: Watched, host: str, port: int) -> Iterator[int]:
    """Answer scrapes in threads of its own; gives the port (0 asks for a free one).

    Raises:
        OSError: the port is in use; says which.
    """
    try:
        server = Server((host, port), watched)
    except OSError as error:
        raise OSError(f"port {port} of {host}: {error.strerror}; choose another with --port") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        watched.close()


def follow(watched: Watched, stop: threading.Event) -> None:
    """Look at the files until asked to stop."""
    while not stop.wait(POLL_S):
        watched.poll()
