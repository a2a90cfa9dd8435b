"""The commands that change a stack: preview, up, down, mend, reap, retry. Called by `infra.commands`.

A stack that waits for machines is noted twice: in a file of this machine, and with the stack's own state, which a
schedule on another machine reads.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
import time
from collections.abc import Mapping

from proving_ground.infra import config, direct, health, life, locks, naming, outputs, scaling, spent, trouble
from proving_ground.infra.interrupts import held
from proving_ground.infra.reading import ConfigError

QUEUE = life.QUEUE
NOTES = life.QUEUE.with_name("notes.log")
EVERY = dt.timedelta(minutes=15)  # between two attempts of `up --wait`


def open_stack(name: str) -> life.Stack:
    """The stack, selected or made: by the Pulumi CLI; where there is none, and no cloud in it, by kubectl."""
    with held():
        from proving_ground.infra.stacks import PulumiStack  # noqa: PLC0415 - the other commands work without pulumi

    environment = config.load(name)
    if direct.possible(environment):
        return direct.DirectStack(environment, _say)
    return PulumiStack(name, _say)


def preview(given: argparse.Namespace) -> int:
    """Say what `up` would do."""
    config.load(given.stack)
    open_stack(given.stack).preview()
    return 0


def up(given: argparse.Namespace) -> int:
    """Make or change a stack; queue it where there is no machine, and with `--wait` try again until there is."""
    environment, stack = config.load(given.stack), open_stack(given.stack)
    result = _attempt(stack, environment)
    if result.outcome == "queued":
        tell(f"{given.stack} waits for machines: {result.steps[-1]}")
        result = _waited(stack, environment, result, given.wait) if given.wait else result
    _say(f"{given.stack}: {result.outcome}")
    return 0 if result.outcome == "up" else result.status


def down(given: argparse.Namespace) -> int:
    """Take a stack away."""
    config.load(given.stack)
    stack = open_stack(given.stack)
    stack.destroy(cluster_gone=given.cluster_gone)
    _note(stack, given.stack, None)
    return 0


def mend(given: argparse.Namespace) -> int:
    """Bring a state in order after a command that was killed."""
    config.load(given.stack)
    open_stack(given.stack).mend(force=given.force)
    _say(f"{given.stack}: in order; next: the command that was killed, `pg infra up {given.stack}` or `down`")
    return 0


def reap(given: argparse.Namespace) -> int:
    """Take a stack away if it is due, whatever lock a killed command left."""
    environment, stack = config.load(given.stack), open_stack(given.stack)
    created = stack.created()
    paid = _spent(environment) if given.spent is None and created else given.spent
    reason = life.due(environment, created, now(), paid)
    _say(reason or f"{given.stack}: stays")
    if reason:
        tell(f"taking down {reason}")
        _destroy(stack)
        _note(stack, given.stack, None)
    return 0


def retry(given: argparse.Namespace) -> int:
    """Try the stacks again that wait for machines; what is wrong with one keeps no other from its turn."""
    queued = life.queued(QUEUE)
    names = list(dict.fromkeys([*queued, *given.stacks]))
    if not names:
        _say("no stack waits")
    return max((_turn(name, queued=name in queued) for name in names), default=0)


def tell(text: str) -> None:
    """Note it, and post it to the webhook of the environment."""
    problem = life.notify(text, NOTES, os.environ.get("PROVING_GROUND_WEBHOOK") or None, now())
    if problem:
        print(problem, file=sys.stderr)


def now() -> dt.datetime:
    """The time; tests set it."""
    return dt.datetime.now(dt.UTC)


def _say(text: str) -> None:
    """One line, at once: a log in CI is read while the command runs."""
    print(text, flush=True)


def _attempt(
    stack: life.Stack, environment: config.Environment, instead: Mapping[str, str] | None = None
) -> life.Result:
    """One `up`, and the note whether the stack waits for machines."""
    result = life.provision(stack, environment, _say, instead)
    _note(stack, environment.name, result if result.outcome == "queued" else None)
    return result


def _note(stack: life.Stack, name: str, queued: life.Result | None) -> None:
    """Remember that a stack waits, or forget it."""
    if queued:
        life.enqueue(name, queued, now(), QUEUE)
    else:
        life.dequeue(name, QUEUE)
    try:
        stack.set_waiting(queued.steps[-1] if queued else None)
    except life.StackError as error:
        print(f"infra: {name}: noted on this machine only: {trouble.why(str(error))}", file=sys.stderr)


def _waited(stack: life.Stack, environment: config.Environment, result: life.Result, hours: float) -> life.Result:
    """Try again until it is up, fails for another reason, or the hours are over; the end is told."""
    name, until, attempt = environment.name, now() + dt.timedelta(hours=hours), 1
    while result.outcome == "queued" and now() < until:
        again, attempt, waiting = min(now() + EVERY, until), attempt + 1, list(life.queued(QUEUE))
        place, left = waiting.index(name) + 1, (until - now()).total_seconds() / 3600
        _say(f"{name}: {place} of {len(waiting)} that wait; attempt {attempt} at {again:%H:%M} UTC; {left:.1f} h left")
        time.sleep(max(0.0, (again - now()).total_seconds()))
        result = _attempt(stack, environment)
    ends = {"up": "is up", "queued": f"found no machine within {hours:g} h, and stays queued", "failed": "failed"}
    tell(f"{name} {ends[result.outcome]}, after {attempt} attempts")
    return result


def _turn(name: str, *, queued: bool) -> int:
    """One stack's turn of `retry`; its exit status, with its failure in one line."""
    try:
        return 0 if _again(name, queued=queued) else 1
    except life.InterruptedStackError:
        raise
    except ConfigError as error:
        print(f"infra: {name}: {error}", file=sys.stderr)
        return 2
    except life.StackError as error:
        line, status = life.explained(error)
        print(f"infra: {name}: {line}", file=sys.stderr)
        return status


def _again(name: str, *, queued: bool) -> bool:
    """Bring up a stack that waits; of one that is up, give pools without machines the next size. Whether it is well."""
    environment, stack = config.load(name), open_stack(name)
    reason = stack.waiting()
    if queued or reason:
        _say(f"{name}: waits for machines{f': {reason}' if reason else ''}")
        return _up_again(stack, environment, {})
    return _unstick(stack, environment)


def _unstick(stack: life.Stack, environment: config.Environment) -> bool:
    """Give pools that want to grow and get no machine the next size of their list; whether the stack is well then."""
    name, has = environment.name, stack.skus()
    if not has:
        _say(f"{name}: has no pools")
        return True
    found = health.look(outputs.load(name))
    instead = scaling.following(environment.pools, has, found.stuck, found.nodes)
    for pool, sku in instead.items():
        _say(f"{name}: pool {pool}: {found.stuck[pool]}; now {sku}")
    if not instead:
        _say(f"{name}: no pool gets another size")
        return not found.stuck
    return _up_again(stack, environment, instead)


def _up_again(stack: life.Stack, environment: config.Environment, instead: Mapping[str, str]) -> bool:
    result = _attempt(stack, environment, instead)
    if result.outcome == "up":
        tell(f"{environment.name} is up")
    return result.outcome == "up"


def _destroy(stack: life.Stack) -> None:
    """Take it away; a lock that is older than any command takes, from whatever machine, is opened first."""
    try:
        stack.destroy()
    except life.InterruptedStackError:
        raise
    except life.StackError as error:
        if not locks.abandoned(str(error), now()):
            raise
        _say("infra: its lock is older than any command takes; mending first")
        stack.mend(force=True)
        stack.destroy()


def _spent(environment: config.Environment) -> float | None:
    """Dollars booked this month; None where there is no cloud, or it does not say: then only the age counts."""
    if environment.azure is None:
        return None
    try:
        where = outputs.load(environment.name).azure
        if where is None:
            return None
        return spent.month_to_date(where.subscription, naming.resource_groups(environment.name), _token())
    except ConfigError as error:
        print(f"infra: {error}; only its age is looked at", file=sys.stderr)
        return None


def _token() -> str:
    from proving_ground.infra.blobs import token  # noqa: PLC0415 - the other commands work without Azure's packages

    return token(f"{spent.API}/.default")
