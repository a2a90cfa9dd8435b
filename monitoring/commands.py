"""What the commands of `python -m monitoring` do that are about metrics and alerts. Called by `monitoring.__main__`."""

from __future__ import annotations

import threading
from argparse import Namespace
from pathlib import Path

from bench import rundir
from monitoring.exporter import Watched, follow, serving
from monitoring.metrics import table
from monitoring.mistakes import MonitoringError

PORTS = range(65_536)


def metrics(options: Namespace) -> int:
    """Print the table of the README."""
    del options
    print(table())
    return 0


def export(options: Namespace) -> int:
    """Follow a run and answer scrapes until interrupted."""
    watched = Watched(followed(options.runs, options.run), options.node_price)
    with serving(watched, options.host, port(options.port, "--port")) as bound:
        watched.poll()
        print(f"http://{options.host}:{bound}/metrics: {watched.why_not or watched.path}", flush=True)
        follow(watched, threading.Event())
    return 0


def followed(runs: Path, name: str) -> Path:
    """What is followed: a path as it is (a link leads to each new run), else the run that is meant.

    Raises:
        RunDirError: there is no such run.
    """
    path = Path(name)
    if path.is_symlink() or (path / "spec.json").exists() or (len(path.parts) > 1 and path.parent.is_dir()):
        return path
    return rundir.find(runs, name).path


def port(number: int, option: str) -> int:
    """The number, if it can be a port.

    Raises:
        MonitoringError: it cannot.
    """
    if number not in PORTS:
        raise MonitoringError(f"{option}: {number}; allowed: 0 (a free one) to {PORTS[-1]}")
    return number
