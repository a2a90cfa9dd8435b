"""Monitoring beside a run, as a process of its own: `pg monitoring beside RUN`. Called by `bench.run`.

It appends to `events/monitoring.jsonl` which alerts came; it is ended before the run is sealed. Nothing of `monitoring`
is imported here: where it cannot run, the run's record says why, and the run goes on without.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator

from proving_ground.bench.child import ended_after, environment, ours
from proving_ground.bench.protocols import Emit
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.tail import last_line

READY_S = 60.0  # from its start until it says where it answers
END_S = 15.0  # from SIGTERM to SIGKILL
POLL_S = 0.1
WATCHING = "exporter http://"  # what it says once it does


@contextlib.contextmanager
def beside(store: RunDir, emit: Emit, factor: float | None = None) -> Iterator[None]:
    """Start it, the rules' durations divided by `factor`, if given; wait until it watches, and end it afterwards."""
    log = store.logs / "monitoring.log"
    argv = ours("monitoring", "beside", str(store.path.resolve()))
    argv += [] if factor is None else ["--factor", f"{factor:g}"]
    with log.open("wb") as out:
        process = subprocess.Popen(argv, env=environment(), stdout=out, stderr=out)
    with ended_after(process, END_S):
        end = time.monotonic() + READY_S
        while process.poll() is None and WATCHING not in log.read_text() and time.monotonic() < end:
            time.sleep(POLL_S)
        if WATCHING not in log.read_text():
            emit("warning", message=f"the run is not monitored: {last_line(log)}")
        yield
