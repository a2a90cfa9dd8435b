"""What the command lines `python -m bench` and `python -m chaos` have in common. Called by their `__main__`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import argcomplete

from bench.protocols import ClusterError
from bench.run import TrialFailed
from bench.rundir import RunDirError
from bench.spec import SpecError

INTERRUPTED = 130


def carry_out(tree: argparse.ArgumentParser, words: list[str] | None, interrupted: str) -> int:
    """Run the function of the command that `words` name; the exit status, every failure told in one line.

    `interrupted` says what is left after Ctrl-C.
    """
    program = tree.prog.rpartition(" ")[2]
    argcomplete.autocomplete(tree)
    options = tree.parse_args(words)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return int(options.function(options))
    except (SpecError, RunDirError) as error:
        return complain(program, error, 2)
    except BrokenPipeError:
        return 0
    except (TrialFailed, ClusterError, OSError) as error:
        return complain(program, error, 1)
    except KeyboardInterrupt:
        return complain(program, f"interrupted; {interrupted}", INTERRUPTED)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: everything is taken down."""
    del number, frame
    raise KeyboardInterrupt


def complain(program: str, error: object, status: int) -> int:
    """One line on stderr."""
    print(f"{program}: {error}", file=sys.stderr)
    return status


def leave(code: int) -> NoReturn:
    """End the process; after an interrupt at once, whatever threads are left."""
    sys.stdout.flush()
    if code == INTERRUPTED:
        os._exit(code)
    sys.exit(code)
