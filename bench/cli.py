"""The command line `pg bench …`: what can be typed, and what each mistake says."""

from __future__ import annotations

import argparse
from pathlib import Path

from proving_ground.bench import commands, rundir, shell
from proving_ground.bench.calibrate import NAME as CALIBRATION
from proving_ground.bench.runner import FAILURES, MISTAKES, known_runs, of_cluster, with_nodes
from proving_ground.bench.spec import suite_names

EXAMPLES = """examples:
  pg bench doctor                     what this machine can do
  pg bench run --nodes 1,2,4,8        the default suite, with a report at the end
  pg bench run --suite smoke          the whole way in seconds
  pg bench plan --nodes 1,2           what would run, and for how long; nothing is started
  pg bench run --resume latest        finish an interrupted run

exit status: 0 fine, 1 a check or a trial failed, 2 a mistake in what was asked, 130 interrupted"""


def parser() -> shell.Parser:
    """All commands and options."""
    return shell.parser("bench", "Measure how distributed training scales.", EXAMPLES, COMMANDS)


def of_doctor(command: argparse.ArgumentParser) -> None:
    """Options of `doctor`."""
    of_cluster(command)
    shell.of_json(command)


def of_a_suite(command: argparse.ArgumentParser) -> None:
    """Options that say what to run."""
    shell.of_suite_name(command, suite_names(), "scaling")
    command.add_argument("--nodes", metavar="LIST", help="node counts, such as 1,2,4,8 (default: the suite's)")
    command.add_argument(
        "--repeats", type=int, metavar="N", help="how often each size is measured (default: the suite's)"
    )
    command.add_argument(
        "--case", action="append", metavar="NAME", help="only this case of the suite; may be given again"
    )
    command.add_argument(
        "--link-mbps", type=float, metavar="RATE", help="every node's link in Mb/s, instead of the suite's"
    )
    command.add_argument(
        "--seed", type=int, metavar="N", help="seed of the order and of the training (default: the suite's)"
    )
    of_cluster(command)
    words = "what an earlier run was asked, instead of --suite"
    command.add_argument("--from", dest="from_run", metavar="RUN", help=words).completer = known_runs  # type: ignore[attr-defined]


def of_plan(command: argparse.ArgumentParser) -> None:
    """Options of `plan`."""
    of_a_suite(command)
    command.add_argument(
        "--price-per-node-hour", type=float, metavar="PRICE", help="what a node costs: then the run's cost is said too"
    )
    shell.of_json(command)


def of_run(command: argparse.ArgumentParser) -> None:
    """Options of `run`."""
    of_a_suite(command)
    words = "finish an interrupted run: a path, a run id, a suite's name or `latest`"
    command.add_argument("--resume", metavar="RUN", help=words).completer = known_runs  # type: ignore[attr-defined]
    command.add_argument(
        "--no-report", action="store_true", help="only record; `pg reports RUN` makes the report later"
    )
    shell.of_quiet(command)
    shell.of_json(command)


def of_calibrate(command: argparse.ArgumentParser) -> None:
    """Options of `calibrate`."""
    command.add_argument("--nodes", default="2,4,8", metavar="LIST", help="node counts (default: 2,4,8)")
    of_cluster(command)
    shell.of_json(command)


def of_logs(command: argparse.ArgumentParser) -> None:
    """Options of `logs`."""
    words = "a path, a run id, a suite's name (default: the newest)"
    command.add_argument("run", nargs="?", default="latest", help=words).completer = known_runs  # type: ignore[attr-defined]
    command.add_argument("--node", metavar="NAME", help="only this node, such as n2")
    command.add_argument("--trial", metavar="ID", help="only this trial, such as t003")
    command.add_argument("--rank", type=int, metavar="N", help="only what was printed while the process had this rank")
    command.add_argument(
        "--since", metavar="WHEN", help="from `fault` (the trial's first), a fault's id (f02), or seconds into the run"
    )
    command.add_argument("--json", action="store_true", help="one JSON object a line")


def of_clean(command: argparse.ArgumentParser) -> None:
    """Options of `clean`."""
    of_cluster(command)
    command.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    shell.of_json(command)


def of_prune(command: argparse.ArgumentParser) -> None:
    """Options of `prune`."""
    command.add_argument(
        "--keep", type=int, default=10, metavar="N", help="newest runs of each suite to keep (default: 10)"
    )
    command.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    shell.of_json(command)


COMMANDS: shell.Commands = {
    "doctor": (commands.doctor, "Say what this machine can do, and what is off and why.", of_doctor),
    "plan": (commands.plan, "Print what would run and how long it would take; nothing is started.", of_plan),
    "run": (commands.run, "Run a suite, then print the table and write the report.", of_run),
    "calibrate": (commands.calibrate, "Measure which link rates this host can imitate faithfully.", of_calibrate),
    "list": (commands.list_runs, "List the recorded runs.", shell.of_json),
    "logs": (commands.logs, "Print what the processes of a run said, merged.", of_logs),
    "clean": (commands.clean, "Remove what a killed run left behind: processes, cgroups, scratch folders.", of_clean),
    "prune": (commands.prune, "Remove old run directories.", of_prune),
}


def main(words: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    return shell.carry_out(parser(), words, MISTAKES, FAILURES, left)


def left(options: argparse.Namespace) -> str:
    """What an interrupted run leaves, and how it goes on."""
    resumed = getattr(options, "resume", None)
    if not resumed and rundir.RunDir(Path(rundir.newest(options.runs))).suite == CALIBRATION:
        return "all that ran was stopped; it was still calibrating, so nothing is there to resume: run it again"
    go_on = f"pg bench run --resume {resumed or 'latest'}{shell.place(options)}"
    return f"all that ran was stopped, what was measured is kept: {go_on}"


def program(words: list[str] | None) -> int:
    """What the process does."""
    return with_nodes(main, words)
