"""What the command lines `pg bench`, `chaos`, `monitoring` and `search` share. Called by their `cli`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import argcomplete
from argcomplete.completers import FilesCompleter

from proving_ground.bench import rundir
from proving_ground.bench.provenance import VERSION
from proving_ground.bench.start import INTERRUPTED
from proving_ground.training import commandline
from proving_ground.training.typed import one_line

RUNS = Path("runs")
Parser = commandline.Parser

Errors = tuple[type[Exception], ...]
Arguments = Callable[[argparse.ArgumentParser], None]
Commands = Mapping[str, tuple[Callable[[argparse.Namespace], int], str, Arguments]]
"""Name → what it does, in words for `--help`, and what adds its options."""


def nothing(command: argparse.ArgumentParser) -> None:
    """A command without options."""
    del command


def parser(program: str, what: str, examples: str, commands: Commands, shared: Arguments = nothing) -> Parser:
    """The command line of a program that works on run directories; `shared` adds options that all commands have."""
    top = Parser(
        prog=f"pg {program}", description=what, epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"proving-ground {VERSION}")
    lie = "where run directories lie (default: runs)"
    top.add_argument("--runs", type=Path, default=RUNS, metavar="DIR", help=lie)
    sub = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (function, words, arguments) in commands.items():
        command = sub.add_parser(name, help=words, description=words)
        command.set_defaults(function=function)
        command.add_argument("--runs", type=Path, default=argparse.SUPPRESS, metavar="DIR", help=lie)
        shared(command)
        arguments(command)
    return top


def carry_out(
    tree: Parser, words: list[str] | None, mistakes: Errors, failures: Errors,
    left: Callable[[argparse.Namespace], str] = lambda _: "",
) -> int:  # fmt: skip
    """Run the function of the command that `words` name; the exit status, every failure told in one line.

    `mistakes` are the caller's (2), `failures` are not (1); `left` says what a run leaves that was begun before Ctrl-C.
    """
    program = tree.prog.rpartition(" ")[2]
    argcomplete.autocomplete(tree)
    options = tree.parse_args(words)
    begun = rundir.newest(options.runs)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return int(options.function(options))
    except mistakes as error:
        return complain(program, error, 2)
    except failures as error:
        return complain(program, error, 1)
    except KeyboardInterrupt:
        told = left(options) if rundir.newest(options.runs) != begun or getattr(options, "resume", None) else ""
        return complain(program, f"interrupted; {told}" if told else "interrupted", INTERRUPTED)


def place(options: argparse.Namespace) -> str:
    """` --runs DIR` for a command that is to be typed next; nothing where it is the default."""
    return "" if options.runs == RUNS else f" {shlex.join(['--runs', str(options.runs)])}"


def of_suite_name(command: argparse.ArgumentParser, names: list[str], default: str) -> None:
    """Which suite."""
    words = f"{', '.join(names)}, or a .toml file (default: {default})"
    option = command.add_argument("--suite", default=default, metavar="NAME", help=words)
    option.completer = suites_or_files(names)  # type: ignore[attr-defined] # argcomplete's own attribute


def suites_or_files(names: list[str]) -> Callable[..., list[str]]:
    """For the shell's completion: the suites that ship, and files."""
    files = FilesCompleter(("toml",))
    return lambda prefix="", **about: [*names, *files(prefix, **about)]


def of_quiet(command: argparse.ArgumentParser) -> None:
    """How little is said."""
    command.add_argument(
        "--quiet", action="store_true", help="nothing until the verdict, its reasons and the report's path"
    )


def of_json(command: argparse.ArgumentParser) -> None:
    """An option of commands that print a table."""
    command.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else (docs/machines.md)"
    )


def put(kind: str, document: Mapping[str, Any]) -> int:
    """Print a document for machines, with its `schema` before all else; the exit status of having done so."""
    print(json.dumps(plain({"schema": f"proving-ground/{kind}/1", **document}), ensure_ascii=False, allow_nan=False))
    return 0


def plain(value: object) -> object:
    """The value as JSON has it: tables with names, lists, and null for what is no number."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain(it) for name, it in value.items()}
    if isinstance(value, list | tuple):
        return [plain(it) for it in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def counted(count: int, word: str) -> str:
    """1 thing, 2 things."""
    return f"{count} {word}" + "s" * (count != 1)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: everything is taken down."""
    del number, frame
    raise KeyboardInterrupt


def complain(program: str, error: object, status: int) -> int:
    """One line on stderr."""
    print(f"{program}: {one_line(str(error))}", file=sys.stderr)
    return status
