"""Starts the real Prometheus and Alertmanager beside a run, from files, and takes them down again.

Called by `monitoring.commands`, `monitoring.beside` and tests. All listen on the loopback only. A folder holds it all:
configuration, rules, targets, data, logs.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from proving_ground.bench.agent import kernel
from proving_ground.bench.child import ended_after
from proving_ground.bench.servers import HERE, free_port
from proving_ground.bench.tail import last_line
from proving_ground.monitoring import rules
from proving_ground.monitoring.mistakes import MonitoringError
from proving_ground.monitoring.programs import program

CONFIGURATION = Path(__file__).parent / "prometheus"
READY_S = 30.0
END_S = 5.0  # from SIGTERM to SIGKILL
SHIPPED_INTERVAL_S = 15.0  # of scrapes and evaluations
LIVE_INTERVAL_S = 0.5  # of the same in a live proof


@dataclass(frozen=True)
class Wanted:
    """What is to run: ports (0: a free one), how far durations are divided, who is told of alerts."""

    folder: Path
    exporter: int  # port
    prometheus: int = 0
    alertmanager: int = 0
    factor: float = 1.0
    webhook: str = ""  # where Alertmanager posts to; empty: nobody is told
    rules: Path = rules.RULES

    @property
    def interval(self) -> str:
        """Between scrapes, and between evaluations of the rules."""
        seconds = SHIPPED_INTERVAL_S if self.factor == 1 else LIVE_INTERVAL_S
        return f"{round(seconds * 1000)}ms"


@dataclass(frozen=True)
class Running:
    """Where the two answer."""

    prometheus: int
    alertmanager: int


@contextlib.contextmanager
def running(wanted: Wanted) -> Iterator[Running]:
    """Prometheus and Alertmanager, ready; gone afterwards.

    Raises:
        OSError: not installed, a port in use, or one does not come up; says which and why.
        MonitoringError: a rule file is wrong; says what and where.
    """
    prometheus, alertmanager = program("prometheus"), program("alertmanager")
    ports = Running(*(free_port(asked) for asked in (wanted.prometheus, wanted.alertmanager)))
    write_configuration(wanted, ports)
    rules.check(rules.files(wanted.folder / "rules"))
    at, data = wanted.folder, wanted.folder / "data"
    with (
        server("alertmanager", ports.alertmanager, at, [
            alertmanager, f"--config.file={at / 'alertmanager.yaml'}", f"--storage.path={data / 'alertmanager'}",
            f"--web.listen-address={HERE}:{ports.alertmanager}", "--cluster.listen-address=", "--log.level=warn",
        ]),
        server("prometheus", ports.prometheus, at, [
            prometheus, f"--config.file={at / 'prometheus.yaml'}", f"--storage.tsdb.path={data / 'prometheus'}",
            f"--web.listen-address={HERE}:{ports.prometheus}", "--storage.tsdb.retention.time=15d",
            "--rules.alert.resend-delay=5s", "--log.level=warn",
        ]),
    ):  # fmt: skip
        yield ports


def write_configuration(wanted: Wanted, ports: Running) -> None:
    """Write everything that the two read."""
    for name in ("rules", "targets", "data"):
        (wanted.folder / name).mkdir(parents=True, exist_ok=True)
    rules.write_live(wanted.folder / "rules", wanted.factor, wanted.rules)
    files: dict[str, Any] = {
        "prometheus.yaml": prometheus_configuration(wanted),
        "alertmanager.yaml": alertmanager_configuration(wanted),
        "alertmanagers.json": [{"targets": [f"{HERE}:{ports.alertmanager}"]}],
        "targets/exporter.json": [{"targets": [f"{HERE}:{wanted.exporter}"]}],
    }
    for name, document in files.items():
        text = json.dumps(document) if name.endswith("json") else yaml.safe_dump(document, sort_keys=False)
        (wanted.folder / name).write_text(text)


def prometheus_configuration(wanted: Wanted) -> dict[str, Any]:
    """The shipped one; its intervals shorter for a live proof."""
    document: dict[str, Any] = yaml.safe_load((CONFIGURATION / "prometheus.yaml").read_text())
    document["global"] = {"scrape_interval": wanted.interval, "evaluation_interval": wanted.interval}
    if wanted.factor != 1:
        document["global"]["scrape_timeout"] = wanted.interval
    return document


def alertmanager_configuration(wanted: Wanted) -> dict[str, Any]:
    """The shipped one; for a live proof every alert is told by itself and at once, and none hides another."""
    document: dict[str, Any] = yaml.safe_load((CONFIGURATION / "alertmanager.yaml").read_text())
    if wanted.webhook:
        hook = {"url": wanted.webhook, "send_resolved": True}
        document["receivers"] = [{"name": "team", "webhook_configs": [hook]}]
    if wanted.factor != 1:
        times = {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "4h"}
        document["route"] = {"receiver": "team", "group_by": ["..."], **times}
        document["inhibit_rules"] = []
    return document


@contextlib.contextmanager
def server(name: str, port: int, folder: Path, argv: list[str]) -> Iterator[None]:
    """One server, ready; gone afterwards, and also if this process is killed.

    Raises:
        OSError: it ended, or is not ready in 30 s; with the last line of its log.
    """
    log = folder / f"{name}.log"
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdout=out, stderr=out, env={**environment, "GOMAXPROCS": "2"},
            preexec_fn=partial(kernel.die_with_parent, os.getpid()),  # noqa: PLW1509 - no call that takes a lock
        )  # fmt: skip
    with ended_after(process, END_S):
        wait_ready(name, process, port, log)
        yield


def wait_ready(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until a server answers that it is ready."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise OSError(f"{name} ended with status {process.returncode}: {last_line(log) or 'it said nothing'}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            if get(port, "/-/ready")[0] == 200:
                return
        time.sleep(0.1)
    raise OSError(f"{name} was not ready in {READY_S:.0f} s: {last_line(log) or 'it said nothing'}")


def get(port: int, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """Status and body of a request to a server on this machine; no proxy is asked.

    Raises:
        OSError: nobody answers.
    """
    connection = http.client.HTTPConnection(HERE, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def query(port: int, expression: str, t: float | None = None) -> list[Mapping[str, Any]]:
    """What Prometheus answers to an expression: `[{"metric": {…}, "value": [t, "1"]}]`.

    Raises:
        MonitoringError: the expression is wrong.
        OSError: nobody answers.
    """
    asked = {"query": expression} | ({} if t is None else {"time": t})
    _, body = get(port, f"/api/v1/query?{urlencode(asked)}")
    document = json.loads(body)
    if document["status"] != "success":
        raise MonitoringError(f"{expression}: {document['error']}")
    found: list[Mapping[str, Any]] = document["data"]["result"]
    return found
