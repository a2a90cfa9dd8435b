"""The command line `pg chaos …`: what can be typed, and what each mistake says."""

from __future__ import annotations

import argparse

from proving_ground.bench import rundir, shell
from proving_ground.bench.runner import FAILURES, MISTAKES, known_runs, of_cluster, with_nodes
from proving_ground.chaos import commands, shrink
from proving_ground.chaos.faults import FAULTS
from proving_ground.chaos.spec import suite_names

EXAMPLES = """examples:
  pg chaos list                          what can be broken here, and what not and why
  pg chaos run                           every fault this machine can do, in turn, with a report at the end
  pg chaos run --suite kill --trials 5   each fault five times, in one job
  pg chaos run --only node_kill          one kind of the suite's
  pg chaos run --suite smoke --random 12 --seed 7     a random schedule, the same for the same seed
  pg chaos replay latest f07             one fault again, as the only one; f03..f07: these in one job
  pg chaos shrink latest                 a schedule that failed made as small as still fails

exit status: 0 fine, 1 a check failed, 2 a mistake in what was asked, 130 interrupted"""


def parser() -> shell.Parser:
    """All commands and options."""
    what = "Break training on purpose, and judge whether it is still the same."
    return shell.parser("chaos", what, EXAMPLES, COMMANDS, of_a_cluster)


def of_a_cluster(command: argparse.ArgumentParser) -> None:
    """The option of every command."""
    of_cluster(command)


def of_a_suite(command: argparse.ArgumentParser) -> None:
    """Options that say what to break."""
    shell.of_suite_name(command, suite_names(), "default")
    command.add_argument(
        "--trials", type=int, metavar="N", help="how often each fault of the suite is done (default: 1)"
    )
    command.add_argument(
        "--random", type=int, metavar="N", help="N random faults in place of the suite's: the same with the same --seed"
    )
    words = "of --random: how many overlap with the one before (default: 0.2)"
    command.add_argument("--overlap", type=float, metavar="SHARE", help=words)
    words = f"only this kind; may be given again: {', '.join(FAULTS)}"
    option = command.add_argument("--only", action="append", metavar="FAULT", help=words)
    option.completer = lambda **_: list(FAULTS)  # type: ignore[attr-defined] # argcomplete's own attribute
    command.add_argument(
        "--case", action="append", metavar="NAME", help="only this case of the suite; may be given again"
    )
    command.add_argument("--nodes", metavar="LIST", help="node counts, such as 3 or 3,4 (default: the suite's)")
    command.add_argument(
        "--seed", type=int, metavar="N", help="seed of targets and of the training (default: the suite's)"
    )


def of_plan(command: argparse.ArgumentParser) -> None:
    """Options of `plan`."""
    of_a_suite(command)
    shell.of_json(command)


def of_run(command: argparse.ArgumentParser) -> None:
    """Options of `run`."""
    of_a_suite(command)
    shell.of_quiet(command)
    shell.of_json(command)


def of_replay(command: argparse.ArgumentParser) -> None:
    """What to do again."""
    shell.of_quiet(command)
    shell.of_json(command)
    words = "a path, a run id, a suite's name or `latest`"
    command.add_argument("run", help=words).completer = known_runs  # type: ignore[attr-defined]
    words = "its id, such as f07, or t002.f07 where several trials have faults; f03..f07: all of these in one job"
    command.add_argument("fault", nargs="+", help=words).completer = known_faults  # type: ignore[attr-defined]


def of_shrink(command: argparse.ArgumentParser) -> None:
    """What to make smaller."""
    shell.of_quiet(command)
    words = "a run that failed: a path, a run id, a suite's name or `latest`"
    command.add_argument("run", help=words).completer = known_runs  # type: ignore[attr-defined]
    command.add_argument(
        "--budget", type=int, default=shrink.BUDGET, metavar="N", help=f"runs at most (default: {shrink.BUDGET})"
    )


def known_faults(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """For the shell's completion: the faults of the run that is named."""
    try:
        plan = rundir.find(parsed_args.runs, parsed_args.run).read("plan")
    except (rundir.RunDirError, OSError):
        return []
    return [str(it["id"]) for trial in plan["trials"] for it in trial["faults"]]


COMMANDS: shell.Commands = {
    "list": (commands.list_faults, "List the faults, and what this machine can do.", shell.of_json),
    "plan": (commands.plan, "Print which faults would be done, where and when; nothing is started.", of_plan),
    "run": (commands.run, "Do the faults of a suite, then write the report.", of_run),
    "replay": (commands.replay, "Do faults of an earlier run again.", of_replay),
    "shrink": (shrink.shrink, "Find the fewest faults of a run that failed that still make it fail.", of_shrink),
}


def main(words: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    return shell.carry_out(parser(), words, MISTAKES, FAILURES, left)


def left(options: argparse.Namespace) -> str:
    """What an interrupted run leaves, and where to read it."""
    return f"everything was healed and stopped, what was recorded is kept: pg reports{shell.place(options)}"


def program(words: list[str] | None) -> int:
    """What the process does."""
    return with_nodes(main, words)
