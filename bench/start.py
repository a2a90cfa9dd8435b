"""The first second of a command: a Ctrl-C while modules are imported is one line and status 130.

Also what holds for a command from then on: a reader of its output that leaves, as of `| head -1`, ends nothing.

Called by `__main__` of each program, by `proving_ground` and `serving.commands`. Standard library only.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import NoReturn, TextIO

INTERRUPTED, MISTAKE = 130, 2
OURS = "proving_ground"
"""What of it is missing is a defect, and no matter of what is installed."""


MAINS = ("infra", "training")
"""Of these `__main__` has the command line, and its `main` does it."""


class Lasting(io.TextIOWrapper):
    """An output of which what nobody reads any more is dropped, by what is started from here too."""

    def write(self, text: str) -> int:
        """As always; into nowhere where the reader has left."""
        try:
            return super().write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """The same."""
        try:
            super().flush()
        except BrokenPipeError:
            self._drop()
            super().flush()  # what waited to be written is gone with it

    def _drop(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def lasting(stream: TextIO) -> TextIO:
    """The stream as one that lasts; any other than an ordinary one stays as it is."""
    if type(stream) is not io.TextIOWrapper:
        return stream
    return Lasting(
        stream.buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )  # fmt: skip


def start(program: str, words: list[str] | None = None) -> NoReturn:
    """Import a command line, do what the words say (those of the process, if none are given) and end the process."""
    try:
        sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr)
        module = imported(program)
        status = int((module.main if program in MAINS else module.program)(words))
    except KeyboardInterrupt:
        status = interrupted(program)
    leave(status)


@contextmanager
def ended_at_once(program: str) -> Iterator[None]:
    """Meanwhile a Ctrl-C ends the process at once: modules are imported, and nothing is there yet to be cleaned up."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        os._exit(interrupted(program))

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as of what a shell started in the background
        signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def imported(program: str) -> ModuleType:
    """Where a command line is."""
    return module_of(f"{OURS}.{program}.{'__main__' if program in MAINS else 'cli'}")


def module_of(name: str) -> ModuleType:
    """A module of a program. A package that is not installed is told in one line, and ends the process."""
    program = name.split(".")[1]
    try:
        with ended_at_once(program):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == OURS:
            raise
        how = "activate the environment that it was installed into, such as . .venv/bin/activate"
        os.write(2, f"{program}: {sys.executable} has no package {error.name}: {how}\n".encode())
        raise SystemExit(MISTAKE) from None


def later(place: str) -> Callable[[object], int]:
    """The function that `MODULE:NAME` means, which is imported when it is called."""
    module, _, name = place.partition(":")

    def call(options: object) -> int:
        return int(getattr(module_of(module), name)(options))

    return call


def interrupted(program: str) -> int:
    """Say so in one line; the exit status."""
    os.write(2, f"{program}: interrupted\n".encode())
    return INTERRUPTED


def leave(status: int) -> NoReturn:
    """End the process; after an interrupt at once, whatever threads are left. What is done is not interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    if status == INTERRUPTED:
        os._exit(status)
    sys.exit(status)
