"""The command line `pg search …`: what can be typed, and what each mistake says."""

from __future__ import annotations

import argparse

from proving_ground.bench import shell
from proving_ground.search import commands, store
from proving_ground.search.spec import ALGORITHMS, suite_names

EXAMPLES = """examples:
  pg search run                                 the default suite, with a report at the end
  pg search run --suite mine.toml --concurrent 10
  pg search run --auto digits --budget-s 300    space and budget proposed, stated, and kept
  pg search resume latest                       finish an interrupted search

exit status: 0 fine, 1 every trial or a check failed, 2 a mistake in what was asked, 130 interrupted"""


def parser() -> shell.Parser:
    """All commands and options."""
    return shell.parser("search", "Search hyper-parameters with the trainer as it is.", EXAMPLES, COMMANDS)


def known_searches(prefix: str = "", parsed_args: argparse.Namespace | None = None, **_: object) -> list[str]:
    """For the shell's completion: ids of searches, suites that were run, and `latest`."""
    del prefix
    known = store.every(getattr(parsed_args, "runs", shell.RUNS))
    return ["latest", *dict.fromkeys(it.suite for it in known), *(it.run_id for it in known)]


def of_search(command: argparse.ArgumentParser) -> None:
    """Which search."""
    words = "a path, an id, a suite's name (default: the newest)"
    option = command.add_argument("search", nargs="?", default="latest", metavar="DIR", help=words)
    option.completer = known_searches  # type: ignore[attr-defined] # argcomplete's own attribute


def of_run(command: argparse.ArgumentParser) -> None:
    """Options of `run`."""
    shell.of_suite_name(command, suite_names(), "digits")
    words = "no suite: propose space and budget for this model from a measured step time and the cores"
    command.add_argument("--auto", metavar="MODEL", help=words)
    words = "what an earlier search was asked, instead of --suite"
    command.add_argument("--from", dest="from_search", metavar="SEARCH", help=words).completer = known_searches  # type: ignore[attr-defined]
    words = f"{', '.join(ALGORITHMS)}, instead of the suite's"
    command.add_argument("--algorithm", choices=ALGORITHMS, metavar="NAME", help=words)
    for name, what in NUMBERS.items():
        command.add_argument(f"--{name}", type=int, metavar="N", help=f"{what}, instead of the suite's")
    command.add_argument(
        "--budget-s", type=float, metavar="S", help="seconds that the search may take (default: the suite's)"
    )
    command.add_argument(
        "--set",
        action="append",
        metavar="KEY=VALUE",
        help="a key of the trainer's, fixed in all trials; may be given again",
    )
    of_outcome(command)


NUMBERS = {
    "trials": "how many trials", "concurrent": "trials at once", "steps": "steps of a trial in full",
    "seed": "seed of the points", "budget-steps": "steps of all trials together at most",
}  # fmt: skip
"""Options that are whole numbers."""


def of_outcome(command: argparse.ArgumentParser) -> None:
    """How much is said, and how."""
    shell.of_quiet(command)
    shell.of_json(command)


def of_resume(command: argparse.ArgumentParser) -> None:
    """Options of `resume`."""
    of_search(command)
    of_outcome(command)


def of_report(command: argparse.ArgumentParser) -> None:
    """Options of `report`."""
    of_search(command)
    shell.of_json(command)


COMMANDS: shell.Commands = {
    "run": (commands.run, "Run a search, then print the best trial and write the report.", of_run),
    "resume": (commands.resume, "Finish an interrupted search; no trial that has ended is run again.", of_resume),
    "report": (commands.report, "Make results and page of a search again.", of_report),
    "list": (commands.list_searches, "List the searches.", shell.of_json),
}


def main(words: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    return shell.carry_out(parser(), words, commands.MISTAKES, commands.FAILURES, left)


def left(options: argparse.Namespace) -> str:
    """What an interrupted search leaves, and how it goes on."""
    name = getattr(options, "resume", None) or "latest"
    return f"all that ran was stopped, what has ended is kept: pg search resume {name}{shell.place(options)}"


def program(words: list[str] | None) -> int:
    """What the process does."""
    return main(words)
