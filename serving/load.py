"""Puts load on an end point by locust, kills a replica meanwhile, and keeps all of it. Called by `serving.commands`.

Levels of users take turns, `repeats` times each, so that what disturbs one disturbs the others. The kill has a level of
its own at the end. What is kept is one line a request; figures are made from it by `serving.figures`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proving_ground.bench import provenance, rundir
from proving_ground.bench.child import ROOT
from proving_ground.bench.redact import redacted
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.servers import HERE
from proving_ground.bench.tail import appended, last_line
from proving_ground.serving import health
from proving_ground.serving.mistakes import FailedError
from proving_ground.serving.servers import END_S, NUMBER_HEADER, EndPoint, Replica, started_group

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
SUITE = "load"
REQUESTS, ORDERS = "requests", "load"
SEALED = (f"{ORDERS}.json", "kill.json", "provenance.json")
"""What the seal covers beside events and logs."""
TOLD = "orders.json"  # what locust is told, real addresses and all; gone before the seal
GRACE_S = 120.0  # beyond the levels: for locust to start, and for its last requests
STOP_S = 30  # a request that is not answered then is cut off


@dataclass(frozen=True)
class Orders:
    """What is to be done: users of each level, how long each, how often all."""

    urls: Sequence[str]
    users: Sequence[int]
    seconds: float
    repeats: int
    kill: bool = False

    @property
    def levels(self) -> list[int]:
        """Users of every level in turn; the last one has the kill, where there is one."""
        return [*list(self.users) * self.repeats, *([max(self.users)] if self.kill else [])]


@dataclass(frozen=True)
class Example:
    """What is posted, what the model answers to it in this process (name → rows), and headers: they are not kept."""

    request: Mapping[str, Any]
    answer: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


def new_run(root: Path) -> RunDir:
    """`root/load/<UTC time>-<id>/`. It has no spec.json, so it is no run for `bench` and `reports`."""
    run = RunDir(root / SUITE / rundir.new_id())
    for folder in (run.events, run.logs):
        folder.mkdir(parents=True)
    rundir.point_latest(root / SUITE / "latest", Path(run.run_id))
    return run


def put(orders: Orders, example: Example, run: RunDir, about: Mapping[str, Any], end_point: EndPoint | None) -> None:
    """Put the load on, and seal what came of it; what was cut off is sealed as incomplete.

    Raises:
        FailedError: locust ends early; its last line.
    """
    shown = {**asdict(orders), "urls": [redacted(it) for it in orders.urls], "levels": orders.levels}
    run.write("provenance", provenance.provenance(sys.argv, 0, time.monotonic()))
    run.write(ORDERS, {"orders": shown, "request": example.request, "answer": example.answer, **about})
    complete = False
    try:
        with health.told(end_point, run):
            drive(orders, example, run, end_point.replicas[0] if end_point and orders.kill else None)
        complete = True
    finally:
        for log in end_point.logs.glob("*.log") if end_point else ():
            shutil.copy(log, run.logs)
        hide(run)
        rundir.seal(run, complete=complete, names=SEALED)


def hide(run: RunDir) -> None:
    """Take out what must not lie in a run: the real addresses, which may have a key or a password."""
    (run.logs / TOLD).unlink(missing_ok=True)
    for file in run.logs.glob("*.log"):
        file.write_text(redacted(file.read_text(errors="replace")))


def drive(orders: Orders, example: Example, run: RunDir, victim: Replica | None) -> None:
    """Locust from its first request to its last; the replica is killed in the middle of the last level."""
    lines = run.events / f"{REQUESTS}.jsonl"
    told = run.logs / TOLD
    document = {
        "urls": list(orders.urls), "request": example.request, "headers": dict(example.headers),
        "levels": orders.levels, "level_s": orders.seconds,
        "kill_level": len(orders.levels) - 1 if orders.kill else None,
    }  # fmt: skip
    told.write_text(json.dumps({**document, "lines": str(lines.resolve()), "number_header": NUMBER_HEADER}))
    command = [sys.executable, "-m", "locust", "--locustfile", str(LOCUSTFILE), "--headless", "--only-summary",
               "--exit-code-on-error", "0", "--stop-timeout", str(STOP_S), "--loglevel", "WARNING"]  # fmt: skip
    environ = {name: it for name, it in os.environ.items() if "proxy" not in name.lower()}
    environ |= {"PROVING_GROUND_LOAD": str(told.resolve()), "PYTHONPATH": str(ROOT)}
    with started_group("locust", 0, run.logs, command, environ) as locust:
        if victim:
            wait_level(locust, lines, len(orders.levels) - 1, orders)
            time.sleep(orders.seconds / 2)
            run.write("kill", kill(victim))
        finish(locust, orders)


def wait_level(locust: Replica, lines: Path, wanted: int, orders: Orders) -> None:
    """Wait until a level has begun.

    Raises:
        FailedError: it does not come.
    """
    offset, limit = 0, time.monotonic() + len(orders.levels) * orders.seconds + GRACE_S
    while time.monotonic() < limit and locust.process.poll() is None:
        new, offset = appended(lines, offset)
        if any(f'"index":{wanted},'.encode() in line for line in new):
            return
        time.sleep(0.05)
    raise FailedError(f"locust has not come to its last level: {last_line(locust.log) or 'it said nothing'}")


def kill(victim: Replica) -> dict[str, Any]:
    """SIGKILL to all of a replica; between which moments it died, and that nobody answers there any more."""
    before_s = time.time()
    victim.kill()
    victim.process.wait()
    refused = refuses(victim.port)
    return {"replica": victim.name, "port": victim.port, "before_s": before_s, "after_s": time.time(), "gone": refused}


def refuses(port: int, timeout_s: float = 5.0) -> bool:
    """Wait until nobody listens at a port; whether that came."""
    limit = time.monotonic() + timeout_s
    while time.monotonic() < limit:
        try:
            socket.create_connection((HERE, port), timeout=1.0).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        time.sleep(0.005)
    return False


def finish(locust: Replica, orders: Orders) -> None:
    """Wait for locust's end.

    Raises:
        FailedError: it fails, or hangs.
    """
    try:
        status = locust.process.wait(len(orders.levels) * orders.seconds + GRACE_S)
    except subprocess.TimeoutExpired:
        raise FailedError(f"locust does not end; it is ended after {END_S:.0f} s more") from None
    if status:
        raise FailedError(f"locust ended with {status}: {last_line(locust.log) or 'it said nothing'}")
