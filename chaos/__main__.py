# PYTHON_ARGCOMPLETE_OK
"""The command line `python -m chaos …`: what can be typed, and what each mistake says."""

from __future__ import annotations

import argparse
import sys

from bench import shell
from bench.__main__ import of_cluster
from bench.clusters import elsewhere
from bench.clusters.local.userns import enter_user_namespace
from bench.commands import FAILURES, MISTAKES
from chaos import commands
from chaos.faults import FAULTS
from chaos.spec import suite_names

EXAMPLES = """examples:
  python -m chaos list                          what can be broken here, and what not and why
  python -m chaos run                           every fault this machine can do, in turn, with a report at the end
  python -m chaos run --suite kill --trials 5   each fault five times, in one job
  python -m chaos run --only node_kill          one kind of the suite's
  python -m chaos replay latest f07             one fault again, as the only one

exit status: 0 fine, 1 a check failed, 2 a mistake in what was asked, 130 interrupted"""


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    what = "Break training on purpose, and judge whether it is still the same."
    return shell.parser("chaos", what, EXAMPLES, COMMANDS, of_a_cluster)


def of_a_cluster(command: argparse.ArgumentParser) -> None:
    """The option of every command."""
    of_cluster(command)


def of_a_suite(command: argparse.ArgumentParser) -> None:
    """Options that say what to break."""
    names = f"{', '.join(suite_names())}, or a .toml file (default: default)"
    command.add_argument("--suite", default="default", metavar="NAME", help=names)
    command.add_argument(
        "--trials", type=int, metavar="N", help="how often each fault of the suite is done (default: 1)"
    )
    command.add_argument(
        "--only", action="append", metavar="FAULT", help=f"only this kind; may be given again: {', '.join(FAULTS)}"
    )
    command.add_argument(
        "--case", action="append", metavar="NAME", help="only this case of the suite; may be given again"
    )
    command.add_argument("--nodes", metavar="LIST", help="node counts, such as 3 or 3,4 (default: the suite's)")
    command.add_argument(
        "--seed", type=int, metavar="N", help="seed of targets and of the training (default: the suite's)"
    )


def of_replay(command: argparse.ArgumentParser) -> None:
    """What to do again."""
    command.add_argument("run", help="a path, a run id, a suite's name or `latest`")
    command.add_argument("fault", help="its id, such as f07, or t002.f07 where several trials have faults")


COMMANDS: shell.Commands = {
    "list": (commands.list_faults, "List the faults, and what this machine can do.", shell.nothing),
    "plan": (commands.plan, "Print which faults would be done, where and when; nothing is started.", of_a_suite),
    "run": (commands.run, "Do the faults of a suite, then write the report.", of_a_suite),
    "replay": (commands.replay, "Do one fault of an earlier run again.", of_replay),
}


def main(words: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    left = "everything was healed and stopped, what was recorded is kept: python -m reports"
    return shell.carry_out(parser(), words, MISTAKES, FAILURES, left)


if __name__ == "__main__":
    if not elsewhere(sys.argv):
        enter_user_namespace()  # nodes for ordinary users too; the kernel wants it done before there are threads
    shell.leave(main())
