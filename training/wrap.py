"""A trainer that knows nothing of us, run as it is: `pg training wrap --pattern step=… python train.py`.

A small process between the trainer and its log. It fills in `$RANK` and the like in the words, tells when the trainer
starts, and turns printed lines into events: each at the moment it was read. So it does not matter who starts it, the
harness, our launcher or torchrun: all set the same variables. It ends as the trainer ends, by the same signal too, and
the trainer never outlives it.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import operator
import os
import re
import select
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from proving_ground.training.events import EVENTS, EVENTS_VARIABLE, MISTAKE, EventError, check_event, open_events

Emit = Callable[..., None]
LOOK_S = 0.05  # how soon its end is seen where something that it left behind keeps its output open
DRAIN_S = 1.0  # for what is still in the pipe then
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGCONT)
CANNOT_START = 127  # as a shell says
PR_SET_PDEATHSIG = 1
KNOWN = (
    ("rank", "RANK"), ("world_size", "WORLD_SIZE"), ("samples", "PROVING_GROUND_BATCH"),
    ("samples", "PROVING_GROUND_SAMPLES"),
)  # fmt: skip
"""Fields of events and the variables that have them; of a field that stands twice, the last that is set."""
ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)")
OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.Div: operator.floordiv,
}  # fmt: skip
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def add_command(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """`wrap`, for the trainer's command line."""
    words = "run any trainer and tell of it; how the harness starts one that is not its own"
    wrap = commands.add_parser("wrap", help=words, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    wrap.add_argument(
        "--pattern", action="append", default=[], metavar="EVENT=REGEX",
        help="printed lines that are events; named groups are fields. Without: it appends events itself",
    )  # fmt: skip
    wrap.add_argument("--cwd", metavar="DIR", help="the folder to start it in (default: this one)")
    wrap.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="WORD",
        help="the trainer's command; $NAME: from the environment; $((64 / WORLD_SIZE)): whole numbers, as a shell does",
    )  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """Run a trainer to its end; its exit status."""
    pattern = dict(it.split("=", 1) for it in options.pattern if "=" in it)
    if len(pattern) < len(options.pattern) or not options.words:
        sys.stderr.write("wrap: needs a command, and EVENT=REGEX for each --pattern\n")
        return 2
    try:
        argv = [filled_in(word, os.environ) for word in options.words]
    except ValueError as error:
        sys.stderr.write(f"wrap: {error}\n")
        return 2
    if options.cwd and not Path(options.cwd).is_dir():
        sys.stderr.write(f"wrap: --cwd {options.cwd}: no such folder\n")
        return 2
    argv[0] = sys.executable if argv[0] == "python" else argv[0]
    with closing(open_events()) as events:
        try:
            child = started(argv, options.cwd, reads=bool(pattern))
        except OSError as error:
            sys.stderr.write(f"wrap: cannot start {argv[0]}: {error.strerror}\n")
            return CANNOT_START
        with child:
            pass_signals_on(child)
            lines = LineEvents(pattern, os.environ, child.pid, events.emit)
            lines.start()
            if child.stdout:
                pump(child, child.stdout.fileno(), lines)
            if (code := child.wait()) == MISTAKE:  # a launcher around this may not pass its status on
                message = f"the command ended with status {code}: a mistake in what it was told"
                events.emit("error", message=message, fatal=True, status=code)
            return ended_like(code)


def filled_in(word: str, env: Mapping[str, str]) -> str:
    """A word with `$NAME` and `$((…))` replaced: whole numbers, names, + - * / % and brackets, as in a shell.

    Raises:
        ValueError: what stands in the brackets is something else.
    """

    def number_of(found: re.Match[str]) -> str:
        try:
            return str(value(ast.parse(found[1].strip().replace("$", ""), mode="eval").body, env))
        except (SyntaxError, KeyError, ZeroDivisionError, TypeError, RecursionError) as error:
            why = f"{error} is not set" if isinstance(error, KeyError) else "whole numbers, names, + - * / % ( ) only"
            raise ValueError(f"{found[0]}: {why}") from None

    return string.Template(ARITHMETIC.sub(number_of, word)).safe_substitute(env)


def value(node: ast.expr, env: Mapping[str, str]) -> int:
    """What an expression comes to.

    Raises:
        KeyError: a name that is not set. TypeError: something that is not allowed. ZeroDivisionError.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        if not env[node.id].lstrip("-").isdecimal():
            raise TypeError(node.id)
        return int(env[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand, env)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left, env), value(node.right, env))
    raise TypeError(ast.dump(node))


def started(argv: Sequence[str], cwd: str | None, *, reads: bool) -> subprocess.Popen[bytes]:
    """The trainer, in a process group of its own: who signals ours would reach it twice.

    Raises:
        OSError: there is no such program.
    """
    hidden = {EVENTS_VARIABLE} if reads else set()
    parent = os.getpid()
    return subprocess.Popen(
        argv, cwd=cwd, stdout=subprocess.PIPE if reads else None, stderr=subprocess.STDOUT if reads else None,
        env={name: value for name, value in os.environ.items() if name not in hidden}, process_group=0,
        preexec_fn=lambda: die_with(parent),  # noqa: PLW1509 - there is one thread here
    )  # fmt: skip


def die_with(parent: int) -> None:
    """In the child: be killed when the parent ends, whatever ends it."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def pass_signals_on(child: subprocess.Popen[bytes]) -> None:
    """Give the trainer what is meant for it."""

    def give(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            child.send_signal(number)

    for number in PASSED_ON:
        signal.signal(number, give)


def ended_like(code: int) -> int:
    """The exit status; by a signal: end by the same, so that whoever started us sees what happened."""
    if code < 0:
        sys.stdout.flush()
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code if code >= 0 else 128 - code  # a signal that does not end a process ended that one


class LineEvents:
    """Turns the lines of one process into events.

    A field is a named group of the pattern: `step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)`. Required fields that the
    line does not have are filled in where they are known: `rank`, `world_size` and `samples` from the environment, the
    last `step`, `pid`, `wall_s`. A line that still lacks one is no event.
    """

    def __init__(self, pattern: Mapping[str, str], env: Mapping[str, str], pid: int, emit: Emit) -> None:
        self._patterns = {event: re.compile(regex) for event, regex in pattern.items()}
        self._known: dict[str, Any] = {"pid": pid}
        for field, variable in KNOWN:
            if env.get(variable, "").isdecimal():
                self._known[field] = int(env[variable])
        self._emit = emit

    def start(self) -> None:
        """The process has begun; a pattern for `start` would say so itself."""
        if "start" not in self._patterns:
            self._offer("start", {})

    def line(self, text: str) -> None:
        """One printed line, without its end."""
        for event, regex in self._patterns.items():
            if found := regex.search(text):
                self._offer(
                    event, {name: number(value) for name, value in found.groupdict().items() if value is not None}
                )

    def _offer(self, event: str, fields: dict[str, Any]) -> None:
        known = self._known | {"wall_s": time.time()}
        record = {name: known[name] for name in EVENTS.get(event, ()) if name in known} | fields
        try:
            check_event({"t": 0, "event": event, **record})
        except EventError:
            return
        if "step" in record:
            self._known["step"] = record["step"]
        self._emit(event, **record)


def number(text: str) -> int | float | str:
    """The number that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(text.replace(",", "") if kind is int else text)
        except ValueError:
            continue
    return text


def pump(child: subprocess.Popen[bytes], source: int, lines: LineEvents) -> None:
    """Copy what the trainer prints to our own output until its end, turning lines into events on the way."""
    rest, ended_t = b"", None
    while ended_t is None or time.monotonic() - ended_t < DRAIN_S:
        if ended_t is None and child.poll() is not None:
            ended_t = time.monotonic()
        if not select.select([source], [], [], LOOK_S)[0]:
            if ended_t is not None:
                break
            continue
        if not (chunk := os.read(source, 65536)):
            break
        write_all(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            lines.line(line.decode(errors="replace").rstrip("\r"))
    if rest:
        lines.line(rest.decode(errors="replace"))


def write_all(chunk: bytes) -> None:
    """Every byte to our output, as it is."""
    while chunk:
        chunk = chunk[os.write(sys.stdout.fileno(), chunk) :]
