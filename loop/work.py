"""A step's commands, one after the other, and their end before time. Called by `loop.drive` and `loop.keeper`.

A command has the step's lock for as long as it lives, and its number stands in there: so who comes after a killed loop
sees that a command of it still runs, and which. What it says goes to a file, and not to a terminal that may go away.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from proving_ground.bench import rundir
from proving_ground.bench.start import INTERRUPTED
from proving_ground.loop import ledger, steps
from proving_ground.loop.ledger import Ledger
from proving_ground.loop.steps import Command

LOOK_S = 0.2
PATIENCE_S = {"up": 900.0, "down": 900.0}
"""How long a step that was told to stop may take: a cloud ends what it has begun. All others: the usual."""
USUAL_S = 60.0
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def do(work: Ledger, step: str, commands: Sequence[Command], by: str) -> int:
    """Run a step and note it; the exit status of the first command that is not well, else 0. Reports are all made.

    Raises:
        HeldError: a command of an earlier loop still runs.
        KeyboardInterrupt: it came meanwhile; the command has ended.
    """
    with ledger.held(work.folder / ledger.STEP) as lock:
        work.note("step_begun", step=step, by=by, commands=[list(it) for it in commands])
        began, before, status = time.time(), len(rundir.all_runs(work.runs)), INTERRUPTED
        try:
            each = (ended(one, lock, log(work, step)) for one in commands)
            status = max(each, default=0) if step == "report" else next(filter(None, each), 0)
        finally:
            well = status == 0 or (status == 1 and steps.found(step, work, before))
            work.note("step_ended", step=step, by=by, status=status, well=well, seconds=time.time() - began)
    return status


def log(work: Ledger, step: str) -> Path:
    """What a step's commands said."""
    return work.logs / f"{step}.log"


def ended(command: Command, lock: int, said: Path) -> int:
    """Run a command to its end; its exit status.

    Raises:
        KeyboardInterrupt: it came meanwhile, and was passed on.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # none may come between its start and our knowing of it
    try:
        process = begun(command, lock, said, before)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    interrupted = False
    while True:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            status = process.wait()
            ledger.sign(lock)
            break
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGTERM)  # it may have been started with SIGINT ignored, in the background
    if interrupted:
        raise KeyboardInterrupt
    return status


def begun(command: Command, lock: int, said: Path, mask: set[int | signal.Signals]) -> subprocess.Popen[bytes]:
    """Start a command, in a session of its own: it signs the lock, and takes signals as we did."""

    def first() -> None:
        ledger.sign(lock)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    with said.open("ab") as out:
        out.write(f"$ {shlex.join(command)}\n".encode())
        out.flush()
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            pass_fds=(lock,), preexec_fn=first,  # noqa: PLW1509 - this process has no threads
        )  # fmt: skip


def last_line(said: Path) -> str:
    """What a step said last: why it failed, most often."""
    lines = [line for line in said.read_text(errors="replace").splitlines() if line.strip()] if said.exists() else []
    return " ".join(lines[-1].split()) if lines else "it said nothing"


def running(work: Ledger) -> int | None:
    """The process of a step's command that runs, whoever began it; None where none does."""
    return ledger.holder(work.folder / ledger.STEP)


def stop(work: Ledger, step: str) -> None:
    """End a command that is under way: in order; where that takes too long, at once."""
    asked, deadline = None, time.monotonic() + PATIENCE_S.get(step, USUAL_S)
    while (process := running(work)) is not None:
        late = time.monotonic() > deadline
        if process and (late or process != asked):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if late:
                    os.killpg(process, signal.SIGKILL)
                else:
                    os.kill(process, signal.SIGTERM)
            asked = process
        time.sleep(LOOK_S)


def outlast(work: Ledger) -> None:
    """Wait until a command that is under way has ended by itself."""
    while running(work) is not None:
        time.sleep(LOOK_S)
