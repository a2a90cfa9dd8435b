"""Exporter, Prometheus and Alertmanager beside a run, for as long as it lasts; every alert becomes an event of the run.

Called by `monitoring.commands`; `bench.monitor` starts `pg monitoring beside RUN` for a suite that asks for it,
and ends it before the run is sealed. An alert's moment is when its message arrived, so the way to a person is included.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from proving_ground.bench.rundir import RunDir
from proving_ground.bench.servers import HERE
from proving_ground.monitoring import rules
from proving_ground.monitoring.expected import EXPECTED
from proving_ground.monitoring.exporter import POLL_S, Watched, serving
from proving_ground.monitoring.inbox import Inbox, Message, receiving
from proving_ground.monitoring.servers import LIVE_INTERVAL_S, SHIPPED_INTERVAL_S, Running, Wanted, running
from proving_ground.training.events import EventWriter

EVENTS = "monitoring.jsonl"
LAST_S = 2.0  # at the end: for what is on its way


class Record:
    """The run's events about its monitoring."""

    def __init__(self, run: RunDir) -> None:
        provenance = run.read("provenance")
        self._ahead_s = float(provenance["wall_s"]) - float(provenance["t"])
        self._writer = EventWriter(run.events / EVENTS)

    def up(self, trial: str, factor: float, folder: Path) -> None:
        """A job is being watched; what is to be expected of the rules."""
        within = {alert.name: alert.within_s / factor for alert in rules.alerts(folder)}
        expected = {kind: asdict(it) for kind, it in EXPECTED.items()}
        interval_s = LIVE_INTERVAL_S if factor != 1 else SHIPPED_INTERVAL_S
        about = {"factor": factor, "interval_s": interval_s, "within_s": within, "expected": expected}
        self._emit("monitoring_up", trial=trial, **about)

    def off(self, why: str) -> None:
        """There is no monitoring, and why."""
        self._emit("monitoring_off", why=why)

    def alerts(self, messages: Iterable[Message], trial: str) -> None:
        """Record what somebody was told; what is of the machine is booked on the trial that runs."""
        for it in messages:
            about: dict[str, Any] = {"trial": it.labels.get("trial", trial)}
            about |= {"t": it.t, "since_t": it.since_wall_s - self._ahead_s}
            summary = it.annotations.get("summary", "")
            self._emit("alert", state=it.state, alert=it.alert, labels=it.labels, summary=summary, **about)

    def _emit(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
        self._writer.emit(event, **fields)

    def close(self) -> None:
        """Nothing follows."""
        self._writer.close()


def beside(run: RunDir, wanted: Wanted, watched: Watched, stop: threading.Event, record: Record) -> None:
    """Monitor a run until asked to stop.

    Raises:
        OSError: a server is not installed, or does not come up.
        MonitoringError: a rule file is wrong.
    """
    with receiving() as inbox, serving(watched, HERE, wanted.exporter) as port:
        watched.poll()
        told = replace(wanted, exporter=port, webhook=inbox.url)
        with running(told) as ports:
            say(run, port, ports)
            carry(wanted, watched, inbox, record, stop)


def say(run: RunDir, exporter: int, ports: Running) -> None:
    """Where all of it answers; whoever started this waits for the line."""
    at = f"exporter http://{HERE}:{exporter}/metrics, Prometheus http://{HERE}:{ports.prometheus}"
    print(f"monitoring {run.path}: {at}, Alertmanager http://{HERE}:{ports.alertmanager}", flush=True)


def carry(wanted: Wanted, watched: Watched, inbox: Inbox, record: Record, stop: threading.Event) -> None:
    """Events in, alerts out, until asked to stop, or until whoever started this is gone."""
    parent = os.getppid()
    known: set[str] = set()
    current = ""
    while not stop.wait(POLL_S) and os.getppid() == parent:
        watched.poll()
        for trial in watched.trials - known:
            record.up(trial, wanted.factor, wanted.rules)
            known.add(trial)
            current = trial
        record.alerts(inbox.new(), current)
    time.sleep(LAST_S)
    record.alerts(inbox.new(), current)
