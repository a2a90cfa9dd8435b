"""One call of a loop: from the first step that is not done to the last, a line each. Called by `loop.cli`."""

from __future__ import annotations

import time

from proving_ground.infra import config, outputs
from proving_ground.infra.reading import ConfigError
from proving_ground.loop import keeper, ledger, money, say, steps, work
from proving_ground.loop.ledger import Asked, Ledger
from proving_ground.loop.steps import STEPS, Known

BEFORE_UP = ("check", "cost")
"""Steps for which nothing has to be there."""


class StoppedError(RuntimeError):
    """A step failed, or the time is over: one line; exit status 1."""


def drive(it: Ledger) -> int:
    """Do what is not done yet; 0, or 1 where a check has failed in one of the steps.

    Raises:
        StoppedError: a step failed, or the time is over.
        KeyboardInterrupt: it came; what was under way has ended.
    """
    take_over(it)
    for name in STEPS:
        if name not in it.state().done:
            one(it, name)
    return 1 if it.state().findings else 0


def take_over(it: Ledger) -> None:
    """End the command that a killed loop has left; what changes a stack ends by itself."""
    process, running = work.running(it), it.state().running
    if process is None:
        return
    step = str(running["step"]) if running else "a command"
    changes = step in work.PATIENCE_S
    print(f"{step} of an earlier call still runs, process {process}: {'waiting for' if changes else 'ending'} it")
    if changes:
        work.outlast(it)
    else:
        work.stop(it, step)


def one(it: Ledger, name: str) -> None:
    """Do a step."""
    asked = it.state().asked
    if name not in BEFORE_UP:
        guard(it)
    commands = STEPS[name](known(it, asked, up=name not in (*BEFORE_UP, "up", "down")))
    if commands:
        say.begins(name, commands)
    began = time.monotonic()
    try:
        status = work.do(it, name, commands, "loop")
    except ledger.HeldError:
        raise StoppedError(over(it)) from None
    if not it.state().done.get(name):
        raise StoppedError(failed(it, name, status))
    if name == "down":
        keeper.close(it, "done")
    outcome = f"left out: {steps.NOTHING[name]}" if not commands else "a check failed" if status else "done"
    say.ends(name, outcome, time.monotonic() - began, it, following(name))


def guard(it: Ledger) -> None:
    """Somebody keeps the time from here on, and it is not over yet.

    Raises:
        StoppedError: it is.
    """
    state = it.state()
    if state.deadline is None:
        it.note("kept", deadline=time.time() + 3600 * state.asked.hours)
        state = it.state()
    if state.ended is None:
        keeper.start(it)
    if state.ended or keeper.due(state, it.spent(), time.time()):
        raise StoppedError(over(it))


def known(it: Ledger, asked: Asked, *, up: bool) -> Known:
    """What the step needs of the stack: as it is where it is up, else as it is configured.

    Raises:
        StoppedError: it should be up, and cannot be asked.
    """
    if not up:
        return steps.known(it, asked, None, None)
    try:
        stack = outputs.load(asked.stack)
    except ConfigError as error:
        raise StoppedError(f"{error}; {advice(it)}") from None
    return steps.known(it, asked, money.of_a_node(asked, stack), money.container_of(asked, stack))


def planned(asked: Asked, it: Ledger) -> dict[str, list[steps.Command]]:
    """Step → its commands, as they are expected before anything is up."""
    stack = money.expected(asked.stack)
    container = asked.container or ("THE-STACKS-OWN" if config.load(asked.stack).azure else None)
    found = Known(asked, it.runs, usd_per_hour=money.of_a_node(asked, stack), container=container)
    made = {name: list(step(found)) for name, step in STEPS.items()}
    made["report"] = steps.report(Known(asked, it.runs, ["RUN"], usd_per_hour=found.usd_per_hour))
    return made


def following(name: str) -> str | None:
    """The step after this one."""
    names = list(STEPS)
    after = names[names.index(name) + 1 :]
    return after[0] if after else None


def failed(it: Ledger, name: str, status: int) -> str:
    """Why it stops, and what can be done."""
    state = it.state()
    if state.due:
        return over(it)
    said = work.log(it, name)
    return f"{name} failed with status {status}: {work.last_line(said)} ({said}); {advice(it)}"


def over(it: Ledger) -> str:
    """The time is over."""
    state = it.state()
    stack = state.asked.stack
    look = f"pg loop status {stack}{say.place(it)}"
    return f"{stack} is being taken down: {state.due or 'its time is over'}; {look}"


def advice(it: Ledger) -> str:
    """How it goes on, and how it ends."""
    state = it.state()
    stack, runs = state.asked.stack, say.place(it)
    more = f"to go on: pg loop {stack}{runs}"
    if state.up_since is None:
        return f"nothing was brought up; {more}"
    now = f"to take it down now: pg loop down {stack}{runs}"
    return f"{say.standing(it)}; {more}; {now}"
