"""What the commands of `pg monitoring` do that are about metrics and alerts. Called by `monitoring.cli`."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

from proving_ground.bench import rundir
from proving_ground.bench.servers import HERE
from proving_ground.bench.shell import put
from proving_ground.monitoring import expected, rules
from proving_ground.monitoring.beside import Record
from proving_ground.monitoring.beside import beside as monitor
from proving_ground.monitoring.exporter import POLL_S, Watched, follow, serving
from proving_ground.monitoring.inbox import Inbox, receiving
from proving_ground.monitoring.metrics import METRICS, table
from proving_ground.monitoring.mistakes import MonitoringError
from proving_ground.monitoring.servers import Running, Wanted, running

PORTS = range(65_536)
FACTOR_MAX = 1000


def metrics(options: Namespace) -> int:
    """Print the table of the README."""
    if options.json:
        return put("monitoring-metrics", {"metrics": [{"name": name, **asdict(it)} for name, it in METRICS.items()]})
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


def up(options: Namespace) -> int:
    """Exporter, Prometheus and Alertmanager beside a run until interrupted."""
    watched = Watched(followed(options.runs, options.run), options.node_price)
    with tempfile.TemporaryDirectory(prefix="monitoring-") as temporary, receiving() as inbox:
        wanted = Wanted(
            options.folder or Path(temporary), port(options.port, "--port"),
            port(options.prometheus, "--prometheus"), port(options.alertmanager, "--alertmanager"),
            factor(options.factor), inbox.url, options.rules,
        )  # fmt: skip
        with serving(watched, HERE, wanted.exporter) as exporter:
            watched.poll()
            with running(replace(wanted, exporter=exporter)) as there:
                print(where(watched, exporter, there), flush=True)
                while True:
                    time.sleep(POLL_S)
                    watched.poll()
                    tell(inbox)


def where(watched: Watched, exporter: int, ports: Running) -> str:
    """Where all of it answers."""
    return (
        f"{watched.why_not or watched.path}\nexporter      http://{HERE}:{exporter}/metrics\n"
        f"Prometheus    http://{HERE}:{ports.prometheus}\nAlertmanager  http://{HERE}:{ports.alertmanager}"
    )


def tell(inbox: Inbox) -> None:
    """Print what Alertmanager would tell a person."""
    for message in inbox.new():
        now, severity = time.strftime("%H:%M:%S"), message.labels.get("severity", "")
        print(f"{now} {message.state:<8} {severity:<8} {message.alert}: {message.annotations.get('summary', '')}",
              flush=True)  # fmt: skip


def beside(options: Namespace) -> int:
    """What a suite with `monitor = true` starts: the same, and every alert becomes an event of the run."""
    run = rundir.find(options.runs, options.run)
    record, stop = Record(run), threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    with tempfile.TemporaryDirectory(prefix="monitoring-") as folder:
        wanted = Wanted(Path(folder), 0, factor=factor(options.factor), rules=options.rules)
        try:
            monitor(run, wanted, Watched(run.path), stop, record)
        except (OSError, MonitoringError) as error:
            record.off(str(getattr(error, "strerror", None) or error))
            raise
        finally:
            record.close()
    return 0


def check(options: Namespace) -> int:
    """Have promtool check the rules, and run their tests."""
    paths = options.files or rules.files()
    count = sum(1 for path in paths for _ in rules.rules_of(rules.read(path)))
    rules.check(paths)
    print(f"{count} rules are right")
    if not options.files:
        rules.test(sorted(rules.TESTS.glob("*.yaml")))
        print("their tests pass")
    return 0


def alerts(options: Namespace) -> int:
    """Print every alert, and which fault must bring which."""
    if options.json:
        faults = [{"fault": kind, "must": it.must, "may": it.may} for kind, it in expected.EXPECTED.items()]
        return put("monitoring-alerts", {"alerts": rules.alerts(), "faults": faults})
    for it in rules.alerts():
        print(f"{it.severity:<9} {it.name:<24} within {it.within_s:g} s  {it.first}")
    print(f"\n{expected.table()}")
    return 0


def factor(number: float) -> float:
    """The factor, if durations can be divided by it.

    Raises:
        MonitoringError: they cannot.
    """
    if not 1 <= number <= FACTOR_MAX:
        raise MonitoringError(f"--factor: {number:g}; allowed: 1 (as shipped) to {FACTOR_MAX}")
    return number


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
