"""The command line `pg monitoring …`: what can be typed, and what each mistake says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from proving_ground.bench import shell
from proving_ground.bench.rundir import RunDirError
from proving_ground.monitoring.mistakes import MonitoringError

try:
    from proving_ground.monitoring import commands, readers
    from proving_ground.monitoring.rules import LIVE_FACTOR, RULES
except ModuleNotFoundError as error:
    print(f"monitoring: {error.name} is not installed: pip install '.[monitoring]'", file=sys.stderr)
    raise SystemExit(2) from None

EXAMPLES = """examples:
  pg monitoring export runs/smoke/latest   follow a run and answer scrapes at http://127.0.0.1:9105/metrics
  pg monitoring up latest                  the same with Prometheus and Alertmanager beside it
  pg monitoring check                      the rules: are they right, and do their tests pass?

exit status: 0 fine, 1 a check failed, 2 a mistake in what was asked, 130 interrupted"""


def parser() -> shell.Parser:
    """All commands and options."""
    return shell.parser("monitoring", "See what a run does, and be told when it goes wrong.", EXAMPLES, COMMANDS)


def of_export(command: argparse.ArgumentParser) -> None:
    """What is followed, and where it is told."""
    command.add_argument("run", help="a run's path, `runs/SUITE/latest` (each new run in turn), a run id or `latest`")
    command.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    command.add_argument("--port", type=int, default=9105, help="port to listen at; 0: a free one (default: 9105)")
    of_price(command)


def of_servers(command: argparse.ArgumentParser) -> None:
    """Which rules, and how fast."""
    command.add_argument("run", help="a run's path, `runs/SUITE/latest`, a run id or `latest`")
    command.add_argument("--rules", type=Path, default=RULES, metavar="DIR", help="rule files (default: those shipped)")
    command.add_argument(
        "--factor",
        type=float,
        default=1.0,
        metavar="N",
        help="divide all durations of the rules (default: 1, as shipped)",
    )


def of_up(command: argparse.ArgumentParser) -> None:
    """Where everything is."""
    of_servers(command)
    of_price(command)
    for name, number in (("port", 9105), ("prometheus", 9090), ("alertmanager", 9093)):
        words = "exporter" if name == "port" else name.capitalize()
        command.add_argument(
            f"--{name}", type=int, default=number, help=f"port of the {words}; 0: a free one (default: {number})"
        )
    command.add_argument(
        "--folder", type=Path, metavar="DIR", help="keep configuration and data there (default: nowhere)"
    )


def of_beside(command: argparse.ArgumentParser) -> None:
    """As `up`, on free ports."""
    of_servers(command)
    command.set_defaults(factor=LIVE_FACTOR)


def of_check(command: argparse.ArgumentParser) -> None:
    """Which rules."""
    command.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="rule files of yours (default: those shipped)"
    )


def of_price(command: argparse.ArgumentParser) -> None:
    """What a node costs."""
    command.add_argument(
        "--node-price", type=float, default=0.0, metavar="DOLLARS", help="of one node an hour, for cost alerts"
    )


COMMANDS: shell.Commands = {
    "export": (commands.export, "Follow a run and answer Prometheus' scrapes.", of_export),
    "metrics": (commands.metrics, "Print every metric: name, kind, unit, labels, meaning, source.", shell.of_json),
    "up": (commands.up, "The exporter, Prometheus and Alertmanager beside a run; prints alerts as they come.", of_up),
    "beside": (
        commands.beside,
        "What a suite with `monitor = true` starts; alerts become events of the run.",
        of_beside,
    ),
    "check": (commands.check, "Check rules by promtool; of those shipped, run the tests too.", of_check),
    "alerts": (commands.alerts, "Print every alert, and which fault must bring which.", shell.of_json),
    **readers.COMMANDS,
}


def main(words: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    return shell.carry_out(parser(), words, (MonitoringError, RunDirError), (OSError,))


def program(words: list[str] | None) -> int:
    """What the process does."""
    return main(words)
