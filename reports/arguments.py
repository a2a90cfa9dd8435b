"""What can be typed after `pg reports COMMAND`. Called by `reports.cli`.

What a command does stands in `reports.commands`, which takes seconds to import: help and a Tab go without.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from proving_ground.bench import shell
from proving_ground.bench.start import later
from proving_ground.reports.recovery import failures

MOST_NODES = 1_000_000
BARS = Path(__file__).parent / "bars"


def of_compare(command: argparse.ArgumentParser) -> None:
    """Arguments of `compare`."""
    command.add_argument("before", metavar="A", help="a run, or one case of it as RUN:CASE")
    command.add_argument("after", metavar="B", help="the same of what may be slower")
    command.add_argument("more", nargs="*", metavar="C", help="more runs, each compared with A")
    command.add_argument("--html", type=Path, metavar="FILE", help="also write a page with charts over each other")
    command.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table for a pull request")
    command.add_argument(
        "--margin", type=percents, metavar="PERCENT",
        help="changes within so many percent are of no interest (default: 1)",
    )  # fmt: skip


def percents(text: str) -> float:
    """A margin from the command line."""
    value = float(text)
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text}: must be from 0 to less than 100")
    return value


def of_index(command: argparse.ArgumentParser) -> None:
    """Arguments of `index`: none beside the folder."""


def of_trend(command: argparse.ArgumentParser) -> None:
    """Arguments of `trend`."""
    command.add_argument("run", nargs="*", metavar="RUN", help="which runs; default: all of a suite under --runs")
    command.add_argument("--suite", metavar="NAME", help="of which suite (default: that of the newest run)")


def of_advise(command: argparse.ArgumentParser) -> None:
    """Arguments of `advise`."""
    command.add_argument("run", metavar="RUN", help="a run with paced compute and a link rate")
    command.add_argument("--suite", type=Path, metavar="FILE.toml", help="write a suite that measures the advice")
    command.add_argument("--most", type=int, default=3, metavar="N", help="pieces of advice in it (default: 3)")
    command.add_argument("--check", metavar="RUN", help="a run of that suite: predicted and measured gains")


def of_predict(command: argparse.ArgumentParser) -> None:
    """Arguments of `predict`."""
    command.add_argument("run", metavar="RUN", help="a run whose block a is done and whose block b has not begun")


def of_forecast(command: argparse.ArgumentParser) -> None:
    """Arguments of `forecast`."""
    command.add_argument("run", metavar="RUN", help="a chaos run")
    command.add_argument("--nodes", type=counts, metavar="N,N,…", help="for so many nodes (default: 8 to 16384)")
    command.add_argument(
        "--mtbf-node-hours", type=positive, default=failures.mtbf_node_hours(), metavar="H",
        help="hours of one node between two failures (default: of the published record, %(default).0f)",
    )  # fmt: skip
    command.add_argument(
        "--repair-hours", type=positive, metavar="H", help="that a failed node is away (default: 24)",
    )  # fmt: skip
    command.add_argument("--price", type=positive, metavar="P", help="of one node for an hour, in any currency")
    command.add_argument("--held-out", metavar="RUN", help="set the forecast beside a run at another rate of faults")


def shipped() -> list[str]:
    """The names of the constraint files that ship with the project."""
    return sorted(it.stem for it in BARS.glob("*.toml"))


def file(name: str) -> Path:
    """The file of constraints that a name means: a shipped one's, else a path."""
    return BARS / f"{name}.toml" if name in shipped() else Path(name)


def of_check(command: argparse.ArgumentParser) -> None:
    """Arguments of `check`."""
    command.add_argument("run", nargs="?", metavar="RUN", help="a run (default: the newest)")
    words = 'a TOML file: require = ["goodput >= 0.95", "efficiency{nodes=4} >= 0.9"]; may be given again; shipped: '
    words += ", ".join(shipped())
    found = command.add_argument("--require", type=file, action="append", default=[], metavar="FILE", help=words)
    found.completer = lambda **_: shipped()  # type: ignore[attr-defined]
    command.add_argument(
        "--that", action="append", default=[], metavar="CONSTRAINT", help="one constraint; may be given again"
    )


def of_junit(command: argparse.ArgumentParser) -> None:
    """Arguments of `junit`."""
    command.add_argument("run", nargs="?", metavar="RUN", help="a run (default: the newest)")
    command.add_argument("--out", type=Path, metavar="FILE", help="write it there (default: stdout)")
    command.add_argument("--strict", action="store_true", help="what cannot be told is an error, not skipped")


def counts(text: str) -> tuple[int, ...]:
    """Node counts from the command line."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= MOST_NODES for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: must be whole numbers from 1 to {MOST_NODES}, such as 8,64,16384")
    return tuple(int(part) for part in parts)


def positive(text: str) -> float:
    """A rate, a time or a price from the command line."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return value


Arguments = Callable[[argparse.ArgumentParser], None]
COMMANDS: dict[str, tuple[str, str, Arguments]] = {
    "compare": ("compare", "Is B slower than A, beyond noise? Exit status 1 if it is.", of_compare),
    "index": ("index", "Write index.html over all runs: verdicts, headline figures, trends.", of_index),
    "trend": ("trends", "Where did figures change over many runs, and at which commit?", of_trend),
    "advise": ("advise", "What would make it faster, by how much, and was that right?", of_advise),
    "forecast": ("foretell", "What a chaos run's recovery costs would mean on many nodes: predicted.", of_forecast),
    "check": ("check", "Hold a run to constraints; exit status 1 unless all are shown to hold.", of_check),
    "junit": ("as_junit", "Verdicts and faults of a run as JUnit XML.", of_junit),
    "undecided": ("undecided", "Say what the repeats of a run under way have not decided yet.", of_predict),
    "predict": (
        "predict",
        "Predict the sizes that are still to run from block a, and seal the prediction.",
        of_predict,
    ),
}
"""Command → its function in `reports.commands`, what it is for, and its arguments."""

NO_TABLE = ("junit", "predict", "undecided")
"""Commands that print none, and so have no `--json`."""


def parser() -> shell.Parser:
    """The command line of these commands."""
    made = shell.Parser(prog="pg reports")
    sub = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (function, words, arguments) in COMMANDS.items():
        command = sub.add_parser(name, help=words, description=words)
        command.add_argument(
            "--runs", type=Path, default=shell.RUNS, metavar="DIR", help="where runs are kept (default: runs)"
        )
        command.set_defaults(function=later(f"proving_ground.reports.commands:{function}"))
        if name not in NO_TABLE:
            shell.of_json(command)
        arguments(command)
    return made
