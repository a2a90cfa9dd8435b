"""The process that takes a stack down when its time or its money is over, whatever became of the loop that made it.

It has a session of its own, ignores a Ctrl-C and the end of a terminal, and is there before `up` begins. It ends when
the stack is down. Started by `loop.drive`; `pg loop keep FOLDER` is what it is started as.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

from proving_ground.infra import operate
from proving_ground.infra.reading import ConfigError
from proving_ground.loop import ledger, money, steps, target, work
from proving_ground.loop.ledger import Ledger, Spent, State

LOOK_S, READ_S = 0.5, 30.0  # between two looks at the clock, and at the machines
AGAIN_S, LONGEST_S = 5.0, 300.0  # from a `down` that failed to the next: the first time, and at most
START_S = 60.0


def keep(folder: Path) -> int:
    """Watch over a loop until its stack is down; the exit status."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    it = Ledger(folder)
    target.enter(it)
    try:
        with ledger.held(folder / ledger.KEEPER):
            watch(it)
    except ledger.HeldError:
        pass  # there is one
    return 0


def watch(it: Ledger) -> None:
    """Until the loop has ended: look at the clock, read the meter, and take the stack down when it is due."""
    read, state, spent = 0.0, it.state(), it.spent()
    while not state.ended:
        with contextlib.suppress(OSError):  # whatever becomes of its folder, time and money are kept
            state = it.state()
        now = time.time()
        if state.up_since and now - read >= READ_S:
            read, spent = now, metered(it, state, spent, now)
        if why := due(state, spent, now):
            take_down(it, state, why)
            return
        time.sleep(LOOK_S)


def metered(it: Ledger, state: State, before: Spent, now: float) -> Spent:
    """Read the meter, begun from when the stack was; a new reading is kept where there is a place for it."""
    found = before
    with contextlib.suppress(ConfigError, OSError):  # the stack's file is being changed; no folder, a full disk
        found = money.read(state.asked, before if before.at else Spent(at=state.up_since), now)
        it.save(found)
    return found


def due(state: State, spent: Spent, now: float) -> str | None:
    """Why the stack must go now, or None."""
    asked = state.asked
    if state.due:
        return state.due
    if state.deadline is not None and now >= state.deadline:
        return f"its {asked.hours:g} h are over"
    if asked.budget_usd is not None and (usd := spent.until(now)) >= asked.budget_usd:
        return f"${usd:,.2f} are spent, and its budget is ${asked.budget_usd:,.2f}"
    return None


def take_down(it: Ledger, state: State, why: str) -> None:
    """End what is under way and take the stack down, again and again until it is; all of it noted."""
    if not state.due:
        with contextlib.suppress(OSError):
            it.note("due", why=why)
            operate.tell(f"taking down {state.asked.stack}: {why}")
    wait_s = AGAIN_S
    while not gone(it, state, why):
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_S)


def gone(it: Ledger, state: State, why: str) -> bool:
    """Try once; whether the stack is down. Where nothing can be noted (no folder, a full disk) it goes all the same."""
    try:
        return not end_step(it) or down(it, state, why)
    except OSError:
        (command,) = steps.down(steps.Known(state.asked, it.runs))
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


def end_step(it: Ledger) -> bool:
    """End the step that is under way; a `down` is left to end by itself. Whether the stack may still be there."""
    running = it.state().running
    step = str(running["step"]) if running else ""
    if step == "down":
        work.outlast(it)
    else:
        work.stop(it, step)
    return it.state().ended is None


def down(it: Ledger, state: State, why: str) -> bool:
    """One `down`; whether it is done."""
    known = steps.Known(state.asked, it.runs)
    try:
        status = work.do(it, "down", steps.down(known), "keeper")
    except ledger.HeldError:
        return False  # somebody was faster
    if status == 0:
        close(it, f"taken down: {why}")
    return status == 0


def close(it: Ledger, why: str) -> None:
    """The stack is down: the last reading of the meter, and the loop's end."""
    spent, now = it.spent(), time.time()
    it.save(Spent(spent.until(now), 0.0, now, {}))
    it.note("ended", why=why)


def start(it: Ledger) -> None:
    """Have the process there, if it is not, before this returns.

    Raises:
        OSError: it does not start; the last line of its log says why.
    """
    if ledger.holder(it.folder / ledger.KEEPER) is not None:
        return
    said = it.logs / "keeper.log"
    with said.open("ab") as out:
        process = subprocess.Popen(
            steps.python("loop", "keep", str(it.folder)), stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + START_S
    while ledger.holder(it.folder / ledger.KEEPER) != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            raise OSError(f"the process that keeps the time does not start: {work.last_line(said)}")
        time.sleep(0.05)
