"""What the command lines `python -m bench`, `chaos` and `monitoring` have in common. Called by their `__main__`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import NoReturn

import argcomplete

from bench.provenance import VERSION
from training.typed import one_line

INTERRUPTED = 130

Errors = tuple[type[Exception], ...]
Arguments = Callable[[argparse.ArgumentParser], None]
Commands = Mapping[str, tuple[Callable[[argparse.Namespace], int], str, Arguments]]
"""Name → what it does, in words for `--help`, and what adds its options."""


def nothing(command: argparse.ArgumentParser) -> None:
    """A command without options."""
    del command


def parser(
    program: str, what: str, examples: str, commands: Commands, shared: Arguments = nothing
) -> argparse.ArgumentParser:
    """The command line of a program that works on run directories; `shared` adds options that all commands have."""
    top = argparse.ArgumentParser(
        prog=f"python -m {program}", description=what, epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"proving-ground {VERSION}")
    lie = "where run directories lie (default: runs)"
    top.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help=lie)
    sub = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (function, words, arguments) in commands.items():
        command = sub.add_parser(name, help=words, description=words)
        command.set_defaults(function=function)
        command.add_argument("--runs", type=Path, default=argparse.SUPPRESS, metavar="DIR", help=lie)
        shared(command)
        arguments(command)
    return top


def carry_out(
    tree: argparse.ArgumentParser, words: list[str] | None, mistakes: Errors, failures: Errors, interrupted: str = ""
) -> int:
    """Run the function of the command that `words` name; the exit status, every failure told in one line.

    `mistakes` are the caller's (2), `failures` are not (1); `interrupted` says what is left after Ctrl-C.
    """
    program = tree.prog.rpartition(" ")[2]
    argcomplete.autocomplete(tree)
    options = tree.parse_args(words)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return int(options.function(options))
    except mistakes as error:
        return complain(program, error, 2)
    except BrokenPipeError:
        return 0
    except failures as error:
        return complain(program, error, 1)
    except KeyboardInterrupt:
        return complain(program, f"interrupted; {interrupted}", INTERRUPTED) if interrupted else INTERRUPTED


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: everything is taken down."""
    del number, frame
    raise KeyboardInterrupt


def complain(program: str, error: object, status: int) -> int:
    """One line on stderr."""
    print(f"{program}: {one_line(str(error))}", file=sys.stderr)
    return status


def leave(code: int) -> NoReturn:
    """End the process; after an interrupt at once, whatever threads are left."""
    sys.stdout.flush()
    if code == INTERRUPTED:
        os._exit(code)
    sys.exit(code)
