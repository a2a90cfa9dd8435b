"""The command line `pg loop …`: what can be typed, and what each mistake says."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from proving_ground.bench import shell
from proving_ground.bench.clusters.options import read_options
from proving_ground.bench.clusters.remote.kubernetes import KubernetesOptions
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError, load_suite, parse_nodes
from proving_ground.bench.start import INTERRUPTED
from proving_ground.chaos import spec as chaos_spec
from proving_ground.infra import config
from proving_ground.infra.reading import ConfigError
from proving_ground.loop import drive, keeper, ledger, money, say, steps, target, work
from proving_ground.loop.ledger import Asked, Ledger

EXAMPLES = """examples:
  pg loop dev --hours 2 --budget 50       up, bench, chaos, report, backup, down; at the latest in two hours
  pg loop dev                             goes on where the last call stopped
  pg loop plan dev --hours 2              every command, and the price; nothing is started
  pg loop status                          what is up, and what it has cost so far
  pg loop down dev                        take it down now

exit status: 0 fine, 1 a check or a step failed, 2 a mistake in what was asked, 130 interrupted"""
KEEP = "keep"
MISTAKES = (ConfigError, SpecError)
FAILURES = (drive.StoppedError, target.UnreachableError, ClusterError, ledger.HeldError, OSError)
OPTIONS = [it.name for it in dataclasses.fields(Asked) if it.name != "stack"]
MOST_HOURS = 24 * 365


def run(options: Namespace) -> int:
    """Begin a loop, or go on with the one that has not ended."""
    config.load(options.stack)
    if options.dry_run:
        return plan(options)
    place = ledger.place(options.runs, options.stack)
    try:
        with ledger.held(place / ledger.LOOP):
            return carried(opened(options))
    except ledger.HeldError as error:
        other = f"a loop of {options.stack} runs already, process {error}"
        raise ConfigError(f"{other}: a Ctrl-C there stops it; pg loop status{shell.place(options)}") from None


def opened(options: Namespace) -> Ledger:
    """The loop that has not ended, else a new one.

    Raises:
        ConfigError: it was asked something else, or something in what is asked makes no sense.
    """
    before = ledger.latest(options.runs, options.stack)
    if before and not before.state().ended:
        resumed(before, options)
        return before
    asked = checked(options)
    made = ledger.create(options.runs, asked, target.find(asked.stack))
    print(f"{options.stack}: ledger, logs and runs of this loop are in {say.short(made.folder)}")
    return made


def resumed(before: Ledger, options: Namespace) -> None:
    """Refuse other options than those that the loop was begun with."""
    asked = before.state().asked
    for name in OPTIONS:
        given = getattr(options, name)
        if given is not None and given != getattr(asked, name):
            option = f"--{name.removesuffix('_usd')}"
            begun = f"the loop of {say.moment(before.state().begun)} was begun with {getattr(asked, name)}"
            ways = f"without it, it goes on; pg loop down {asked.stack}{shell.place(options)} ends it"
            raise ConfigError(f"{option} {given}: {begun}; {ways}")
    print(f"{asked.stack}: going on with the loop of {say.moment(before.state().begun)}: {say.short(before.folder)}")


def asked_for(options: Namespace) -> Asked:
    """What the options say, and the defaults for the rest."""
    given = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    return Asked(options.stack, **given)


def checked(options: Namespace) -> Asked:
    """What is asked, if it makes sense.

    Raises:
        ConfigError, SpecError: it does not.
    """
    asked = asked_for(options)
    money.estimate(asked)
    money.of_a_node(asked, money.expected(asked.stack))
    load_suite(asked.bench)
    chaos_spec.load(asked.chaos)
    if asked.nodes is not None:
        parse_nodes(asked.nodes)
    read_options(KubernetesOptions, "kubernetes", asked.options or "")
    return asked


def carried(it: Ledger) -> int:
    """Carry a loop out; a Ctrl-C is answered with what is up."""
    target.enter(it)
    try:
        return drive.drive(it)
    except KeyboardInterrupt:
        state = it.state()
        step = f" in {state.last}" if state.last else ""
        told = drive.over(it) if state.due else f"interrupted{step}; {drive.advice(it)}"
        return complain(told, INTERRUPTED)
    except drive.StoppedError as error:
        return complain(str(error), 1)


def complain(told: str, status: int) -> int:
    """One line, whole: its end has the commands that are to be typed."""
    print(f"loop: {told}", file=sys.stderr)
    return status


def plan(options: Namespace) -> int:
    """Print every command and the price; nothing is started."""
    before = ledger.latest(options.runs, options.stack)
    going = before is not None and before.state().ended is None
    asked = before.state().asked if before and going else checked(options)
    here = before if before and going else Ledger(ledger.place(options.runs, asked.stack) / "NEW")
    done = here.state().done if going else {}
    for name, commands in drive.planned(asked, here).items():
        say.planned(name, commands, done=name in done)
    made = money.estimate(asked)
    budget = f", at most ${asked.budget_usd:,.2f}" if asked.budget_usd is not None else ""
    whole = f"${made.least:,.2f} to ${made.most:,.2f}{budget}" if made.lines else "nobody bills for its machines"
    print(f"{asked.stack}: up for {asked.hours:g} h at most: {whole} (predicted)")
    return 0


def status(options: Namespace) -> int:
    """What is up, and what it has cost so far; 1 where nobody takes it down."""
    if options.stack:
        config.load(options.stack)
    one = ledger.latest(options.runs, options.stack) if options.stack else None
    loops = [one] if one else [] if options.stack else ledger.every(options.runs)
    found = [say.status(it) for it in loops]
    found = found if options.stack else [it for it in found if not it.ended]
    if options.json:
        shell.put("loop-status", {"loops": found})
    else:
        print("\n".join(map(say.line, found)) or "no loop is under way")
    return 0 if all(map(say.is_watched, found)) else 1


def down(options: Namespace) -> int:
    """Take the stack of a loop down now, and end the loop."""
    config.load(options.stack)
    place = ledger.place(options.runs, options.stack)
    try:
        with ledger.held(place / ledger.LOOP):
            return taken_down(options)
    except drive.StoppedError as error:
        return complain(str(error), 1)
    except ledger.HeldError as error:
        raise ConfigError(f"a loop of {options.stack} runs, process {error}: first a Ctrl-C there") from None


def taken_down(options: Namespace) -> int:
    """The same, as the only one who works on it."""
    it = ledger.latest(options.runs, options.stack)
    if it is None or it.state().ended:
        raise ConfigError(f"no loop of {options.stack} is under way; pg infra down {options.stack}")
    target.enter(it)
    drive.take_over(it)
    if it.state().ended:
        return 0
    commands = steps.down(steps.Known(it.state().asked, it.runs, cluster_gone=options.cluster_gone))
    try:
        status = work.do(it, "down", commands, "person")
    except ledger.HeldError:
        raise drive.StoppedError(drive.over(it)) from None  # by the one that keeps the time
    if status:
        raise drive.StoppedError(drive.failed(it, "down", status))
    keeper.close(it, "taken down by hand")
    print(say.line(say.status(it)))
    return 0


def keep(options: Namespace) -> int:
    """Be the process that keeps the time."""
    return keeper.keep(options.folder)


def hours(text: str) -> float:
    """Hours that are some."""
    return above(text, MOST_HOURS)


def dollars(text: str) -> float:
    """Money that is some."""
    return above(text, math.inf)


def above(text: str, most: float) -> float:
    """A number above 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= most or number == math.inf:
        ends = f", and {most:g} at most" if most < math.inf else ""
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0{ends}")
    return number


def of_stack(command: argparse.ArgumentParser) -> None:
    """Which stack."""
    command.add_argument("stack", metavar="STACK", help=f"one of {', '.join(config.known())}")


def of_asked(command: argparse.ArgumentParser) -> None:
    """What a loop is asked."""
    of_stack(command)
    default = Asked("")
    add = command.add_argument
    add("--hours", type=hours, metavar="H", help=f"down after this long, whatever happens (default: {default.hours:g})")
    add("--budget", dest="budget_usd", type=dollars, metavar="USD", help="down once the machines have cost this much")
    add("--bench", metavar="SUITE", help=f"of `bench` (default: {default.bench})")
    add("--chaos", metavar="SUITE", help=f"of `chaos` (default: {default.chaos})")
    add("--nodes", metavar="LIST", help="node counts of the benchmark (default: the suite's)")
    add("--pool", metavar="NAME", help="of the stack's pools (default: the first with GPUs)")
    add("--options", metavar="WORDS", help="more of `--cluster kubernetes:`, such as emulated=true")
    add("--container", metavar="URL", help="where the backup goes (default: the stack's own storage)")


def of_run(command: argparse.ArgumentParser) -> None:
    """Options of `run`."""
    of_asked(command)
    command.add_argument("--dry-run", action="store_true", help="the same as `plan`")


def of_status(command: argparse.ArgumentParser) -> None:
    """Options of `status`."""
    command.add_argument("stack", nargs="?", metavar="STACK", help="also one that is down (default: all that are not)")
    shell.of_json(command)


def of_down(command: argparse.ArgumentParser) -> None:
    """Options of `down`."""
    of_stack(command)
    command.add_argument("--cluster-gone", action="store_true", help="its API server exists no more")


def of_keep(command: argparse.ArgumentParser) -> None:
    """Options of `keep`."""
    command.add_argument("folder", type=Path, metavar="FOLDER")


COMMANDS: shell.Commands = {
    "run": (run, "Do all steps, or go on with a loop: what `pg loop STACK` means.", of_run),
    "plan": (plan, "Print every command and the price; nothing is started.", of_asked),
    "status": (status, "What is up, and what it has cost so far.", of_status),
    "down": (down, "Take a loop's stack down now.", of_down),
    KEEP: (keep, "Keep the time of a loop; the others start it.", of_keep),
}


def parser() -> shell.Parser:
    """All commands and options."""
    what = "A stack from nothing to a report and back: check, cost, up, bench, chaos, report, backup, down."
    return shell.parser("loop", what, EXAMPLES, COMMANDS)


def spelled(words: Sequence[str]) -> list[str]:
    """`dev --hours 2` as `run dev --hours 2`."""
    first = words[0] if words else ""
    return ["run", *words] if first and not first.startswith("-") and first not in COMMANDS else list(words)


def main(words: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    given = spelled(sys.argv[1:] if words is None else words)
    return shell.carry_out(parser(), given, MISTAKES, FAILURES)


def program(words: list[str] | None) -> int:
    """What the process does."""
    return main(words)
