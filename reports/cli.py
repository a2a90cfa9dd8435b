"""`pg reports [RUN]`: results.json, report.html and a table from a run directory.

Called by people, and by `bench run` after a run.

Exit status: 0 nothing failed, 1 a check or the run failed (with --strict: or is unknown), 2 the caller's mistake.
"""

from __future__ import annotations

import argparse
import gc
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import argcomplete

from proving_ground.bench import rundir, shell
from proving_ground.bench.provenance import VERSION
from proving_ground.bench.start import later
from proving_ground.reports.arguments import COMMANDS, positive
from proving_ground.reports.arguments import parser as parser_of_commands
from proving_ground.training.typed import unknown

EPILOG = """\
exit status: 0 when nothing failed, 1 when a check or the run failed, 2 for a mistake in the call.
A verdict of "unknown" (too noisy, incomplete, cores shared …) exits with 0, because nothing was shown to be wrong, and
says so in the verdict line; with --strict it exits with 1: use that where only a proven pass may go on.
other commands (each with --help):
  pg reports compare A B           is B slower than A, beyond noise? also RUN:CASE RUN:CASE
  pg reports compare A B C --html FILE    the same for several, on a page with charts over each other
  pg reports index                 index.html over all runs, with trends
  pg reports trend                 where figures changed over many runs, and at which commit
  pg reports advise RUN            what would make it faster, and how to check that by running it
  pg reports check RUN --that 'efficiency{nodes=4} >= 0.9'    a gate for pipelines; --require FILE
  pg reports junit RUN             verdicts and faults as JUnit XML
  pg reports forecast RUN          what a chaos run's recovery costs would mean on many nodes
  pg reports predict RUN           what block a of a run says of the other sizes; the harness calls it in a run
  pg reports undecided RUN         which verdicts of it are still open; called likewise
examples:
  pg reports                       the newest run
  pg reports scaling               the newest run of a suite
  pg reports runs/scaling/20260102T030405Z-abcd --no-html
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = shell.Parser(
        prog="pg reports",
        description="Analyse a run: write results.json and report.html beside it, print the table and the verdict.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run = made.add_argument(
        "run", nargs="?", metavar="RUN", help="a run's path or id, or a suite's name; default: the newest run"
    )
    run.completer = complete_run  # type: ignore[attr-defined]  # argcomplete's protocol
    made.add_argument("--version", action="version", version=f"proving-ground {VERSION}")
    made.add_argument(
        "--runs", type=Path, default=shell.RUNS, metavar="DIR", help="where runs are kept (default: runs)"
    )
    made.add_argument("--quiet", action="store_true", help="only the verdict, its reasons and where the report lies")
    shell.of_json(made)
    made.add_argument("--no-html", action="store_true", help="only results.json and the table, no report.html")
    made.add_argument(
        "--price-per-node-hour", type=positive, metavar="PRICE", help="what a node costs, for the section on cost"
    )
    made.add_argument("--deadline-hours", type=positive, metavar="H", help="an epoch must be done within so many hours")
    made.add_argument("--strict", action="store_true", help='an "unknown" verdict exits with 1, like a failed one')
    made.set_defaults(function=later("proving_ground.reports.commands:report"))
    return made


def complete_run(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Commands, run ids and suites for the shell's completion."""
    known = rundir.all_runs(parsed_args.runs)
    return [*(run.run_id for run in known), *sorted({run.suite for run in known}), *COMMANDS]


def command_first(words: list[str]) -> list[str]:
    """`--runs DIR forecast RUN` as `forecast --runs DIR RUN`: options may stand before a command."""
    free = [at for at, word in enumerate(words) if not word.startswith("-") and words[max(0, at - 1)] != "--runs"]
    if free and words[free[0]] in COMMANDS:
        return [words[free[0]], *words[: free[0]], *words[free[0] + 1 :]]
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    words = command_first(list(sys.argv[1:] if argv is None else argv))
    made = parser_of_commands() if words[:1] and words[0] in COMMANDS else parser()
    argcomplete.autocomplete(made)
    if len(words) > 1 and words[0] not in COMMANDS and not any(it.startswith("-") for it in words[:2]):
        made.error(unknown("command", words[0], COMMANDS))  # a run is one word, so it was to be a command
    arguments = made.parse_args(words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a log that is not UTF-8 loses signs, never the table
    try:
        return int(arguments.function(arguments))
    except (rundir.RunDirError, OSError) as error:
        return shell.complain("reports", error, 2)
    except Exception as error:
        return shell.complain("reports", f"a defect of the report, not of the run: {type(error).__name__}: {error}", 1)


def program(words: list[str] | None) -> int:
    """What the process does."""
    gc.disable()  # a report lives for seconds: to look for cycles among its records takes a tenth of its time
    return main(words)
