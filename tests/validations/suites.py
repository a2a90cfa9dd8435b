"""Suites with mistakes in them: `python -m tests.validations suites`.

Every suite that ships is changed at random (a seed each): keys dropped, renamed and invented, values retyped, swapped,
nested, repeated, made extreme, empty, endless, NaN, a path or control characters, and the file's own bytes. What comes
of it goes through `bench plan` and `chaos plan`. Either it is accepted, and then rules of our own
(`tests.validations.suite_rules`) must allow it, or it is refused with exit status 2 and one line of at most 300
characters. No traceback, and no plan that takes longer than `LIMIT_S` of processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import math
import os
import random
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from proving_ground.bench import cli as bench_cli
from proving_ground.chaos import cli as chaos_cli
from tests.validations.simulation import several
from tests.validations.sitting import MEASURED, ROOT, Document, Pace, State, keep, load, origin
from tests.validations.suite_rules import wrong

FILE = MEASURED / "suites.json"
COMMAND = "nox -s validate -- suites"
COUNT = 10_000
BLOCK = 50  # mutants that a process does before it tells
LIMIT_S = 30.0  # of processor time, for one plan; the largest that is allowed takes a few
LINE = 300  # characters
DEEP = 300  # tables and lists within each other
KINDS = ("traceback", "hang", "long message", "odd status", "accepted though wrong")
PLANS: dict[str, Callable[[list[str]], int]] = {"bench": bench_cli.main, "chaos": chaos_cli.main}

SHIPPED = sorted(
    [*ROOT.glob("bench/suites/*.toml"), *ROOT.glob("chaos/suites/*.toml"), *ROOT.glob("bench/examples/*.toml")]
)
EXTREME: tuple[Any, ...] = (
    0, -1, -5, 1, 2, 65, 1.5, -0.0, 1e-300, 1e308, -1e308, math.nan, math.inf, -math.inf, 2**31, 2**63, 1_000_000_007,
    10**30, 10**400, True, False, [], {}, [0], ["a"], [-2], [1.5], [[]], {"a": 1}, "", "a", "nan", "1e999", "../../x",
    "/etc/passwd", "latest", ".", "a\0b", "\u001b[31m", "[red]x[/]", "%s{}$HOME", "ä€\U0001d6fc", "n9", "x" * 5000,
    "\n\n", "true", "digits", "paced", "live",
)  # fmt: skip


class HangError(BaseException):
    """A plan took too long; no `except Exception` may take it for something else."""


@dataclass
class Found:
    """What some mutants came to."""

    outcomes: Counter[str] = field(default_factory=Counter)  # "bench refused" …
    bad: list[dict[str, Any]] = field(default_factory=list)


Path_ = tuple[Any, ...]


def places(value: object, path: Path_ = ()) -> Iterator[Path_]:
    """The way to everything within a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, it in pairs:
        yield (*path, key)
        yield from places(it, (*path, key))


def holder(document: Any, path: Path_) -> Any:
    """What the last key of the way is a key of."""
    for key in path[:-1]:
        document = document[key]
    return document


def drop(chance: random.Random, document: Any, path: Path_) -> None:
    """Take it out."""
    del chance, holder(document, path)[path[-1]]


def extreme(chance: random.Random, document: Any, path: Path_) -> None:
    """Another value in its place."""
    holder(document, path)[path[-1]] = copy.deepcopy(chance.choice(EXTREME))


def retype(chance: random.Random, document: Any, path: Path_) -> None:
    """The same value as another type."""
    at, value = holder(document, path), holder(document, path)[path[-1]]
    at[path[-1]] = chance.choice(
        [str(value), [value], {"a": value}, [value, value], bool(value), len(str(value)) + 0.5]
    )


def swap(chance: random.Random, document: Any, path: Path_) -> None:
    """A copy of another value of the document in its place."""
    other = chance.choice(list(places(document)))
    holder(document, path)[path[-1]] = copy.deepcopy(holder(document, other)[other[-1]])


def rename(chance: random.Random, document: Any, path: Path_) -> None:
    """Another key."""
    at, key = holder(document, path), path[-1]
    if isinstance(at, dict):
        keys = [str(it[-1]) for it in places(document)]
        at[chance.choice([key + "s", key[:-1], key.upper(), "", "ä" * 3, "k" * 5000, *keys])] = at.pop(key)


def add(chance: random.Random, document: Any, path: Path_) -> None:
    """A key more, of this or any other suite."""
    at = holder(document, path)
    if isinstance(at, dict):
        at[chance.choice(KEYS)] = copy.deepcopy(chance.choice(EXTREME))


def nest(chance: random.Random, document: Any, path: Path_) -> None:
    """Tables or lists around it, up to hundreds."""
    at = holder(document, path)
    for _ in range(chance.choice([1, 2, 30, DEEP])):
        at[path[-1]] = {"a": at[path[-1]]} if chance.random() < 0.5 else [at[path[-1]]]


def repeat(chance: random.Random, document: Any, path: Path_) -> None:
    """An element of a list again, up to a thousand times."""
    at = holder(document, path)
    if isinstance(at, list):
        at.extend(copy.deepcopy(at[path[-1]]) for _ in range(chance.choice([1, 2, 100, 1000])))


def scale(chance: random.Random, document: Any, path: Path_) -> None:
    """A number, a thousand times larger, smaller, or negative."""
    at, value = holder(document, path), holder(document, path)[path[-1]]
    if type(value) in (int, float):
        at[path[-1]] = value * chance.choice([-1, 0, 2, 1000, 10**9, 0.001, 1.5])


MUTATIONS = (drop, extreme, extreme, extreme, retype, swap, rename, add, add, nest, repeat, scale)


def known_keys() -> list[str]:
    """Every key of every suite that ships, and of the documents' tables."""
    found = {str(key) for file in SHIPPED for path in places(tomllib.loads(file.read_text())) for key in path}
    from tests.validations import suite_rules as rules  # noqa: PLC0415 - its tables only

    tables = (rules.SUITE, rules.CASE, rules.FAULT, rules.COMMAND, rules.PROGRAMS, rules.TRAINER)
    return sorted(found.union(*tables, rules.PLANNED))


KEYS = known_keys()


def toml(value: Any) -> str:
    """As TOML, in a line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml(it)}" for key, it in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value)


def damaged(chance: random.Random, text: str) -> str:
    """The file's own characters: one lost, doubled or replaced, a line lost, doubled or moved."""
    lines, at = text.splitlines(keepends=True), chance.randrange(len(text))
    line = chance.randrange(len(lines))
    other = chance.choice("=[]{}\"'#\0\ufeffä,.-")
    return chance.choice([
        text[:at] + text[at + 1 :], text[: at + 1] + text[at:], text[:at] + other + text[at + 1 :],
        "".join(lines[:line] + lines[line + 1 :]), "".join([*lines, lines[line]]), text[:at],
    ])  # fmt: skip


def mutant(seed: int) -> tuple[str, str]:
    """(what was done to which suite, the file) of a seed."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)  # nests are deeper than what reads them may be
    try:
        return changed(seed)
    finally:
        sys.setrecursionlimit(limit)


def changed(seed: int) -> tuple[str, str]:
    """The same, at any depth."""
    chance = random.Random(f"suites {seed}")  # noqa: S311 - to be repeated, not secret
    file = SHIPPED[seed % len(SHIPPED)]
    if chance.random() < 0.1:
        return f"{file.stem}: characters", damaged(chance, file.read_text())
    document, done = tomllib.loads(file.read_text()), []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        if found := list(places(document)):
            how = chance.choice(MUTATIONS)
            how(chance, document, chance.choice(found))
            done.append(how.__name__)
    return f"{file.stem}: {', '.join(done)}", "".join(
        f"{json.dumps(key)} = {toml(it)}\n" for key, it in document.items()
    )


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Ends what takes longer, in processor time: a busy machine makes nothing a hang."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise HangError

    before = {number: signal.getsignal(number) for number in (signal.SIGVTALRM, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        for number, handler in before.items():  # a command line takes some for itself
            signal.signal(number, handler)


def outcome(program: str, file: Path, limit_s: float = LIMIT_S) -> tuple[str, str]:
    """(accepted, refused, or what was wrong with it; in words) of one plan."""
    said, stdout = io.StringIO(), io.StringIO()
    try:
        with within(limit_s), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(said):
            status = PLANS[program](["plan", "--suite", str(file), "--cluster", "fake"])
    except HangError:
        return "hang", f"more than {limit_s:g} s"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - that none comes is what is asked
        return "traceback", f"{type(error).__name__}: {error}"[:LINE]
    message = said.getvalue().removesuffix("\n").removeprefix(f"{program}: ")
    if status == 0:
        found = list(wrong(tomllib.loads(file.read_text()), faults=program == "chaos"))
        return ("accepted though wrong", "; ".join(found)[:LINE]) if found else ("accepted", "")
    if status != 2:
        return "odd status", f"{status}: {message}"[:LINE]
    return (
        ("long message", message[:LINE]) if len(message) > LINE or "\n" in message or not message else ("refused", "")
    )


def block(it: tuple[int, int]) -> Found:
    """So many mutants from a first seed on."""
    first, count = it
    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mutant.toml"
        for seed in range(first, first + count):
            done, text = mutant(seed)
            file.write_text(text, errors="replace")
            for program in PLANS:
                what, why = outcome(program, file)
                found.outcomes[f"{program} {what}"] += 1
                if what in KINDS:
                    found.bad.append({"seed": seed, "program": program, "what": what, "why": why, "mutant": done})
    return found


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 where something was neither accepted rightly nor refused in a line."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations suites", description=__doc__)
    parser.add_argument(
        "--count", type=int, default=COUNT, help=f"in all, earlier sittings included (default {COUNT:,})"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: as many as cores)")
    parser.add_argument("--seed", type=int, help="print this one mutant and what comes of it, and nothing else")
    options = parser.parse_args(argv)
    if options.seed is not None:
        return replay(options.seed)
    document = load(FILE, COMMAND, state, anywhere=True)
    return sitting(document, options.count, options.jobs)


def replay(seed: int) -> int:
    """One mutant; what came of it."""
    done, text = mutant(seed)
    found = block((seed, 1))
    print(f"{text[:3000]}\n\n{done}\n{dict(found.outcomes)}")
    for it in found.bad:
        print(f"{it['program']}: {it['what']}: {it['why']}")
    return int(bool(found.bad))


def sitting(document: Document, count: int, jobs: int) -> int:
    """Up to so many mutants in all, from where the sitting before ended."""
    cell = document["cells"].setdefault("suites", {"count": 0, "outcomes": {}, "bad": [], "sittings": []})
    cell["sittings"].append({"from": cell["count"], **origin()})
    before, pace = cell["count"], Pace(count - cell["count"])
    blocks = [(first, min(BLOCK, count - first)) for first in range(before, count, BLOCK)]
    with several(jobs) as each:
        for found in each(block, blocks):
            take(cell, found)
            keep(FILE, document)
            if left := pace.left(cell["count"] - before):
                print(f"{cell['count']:,} of {count:,} mutants, {len(cell['bad'])} bad · {left}", flush=True)
    for it in cell["bad"]:
        print(f"seed {it['seed']}, {it['program']}: {it['what']}: {it['why']} ({it['mutant']})")
    print(f"{cell['count']:,} mutants: {', '.join(f'{name} {n:,}' for name, n in sorted(cell['outcomes'].items()))}")
    return int(bool(cell["bad"]))


def table(document: Mapping[str, Any]) -> str:
    """How many mutants there were, and what came of them by program."""
    cell = document["cells"]["suites"]
    rows = ["| mutants | program | refused in one line | accepted, and allowed | bad |", "|--:|---|--:|--:|--:|"]
    for program in PLANS:
        refused, accepted = (cell["outcomes"].get(f"{program} {what}", 0) for what in ("refused", "accepted"))
        bad = sum(it["program"] == program for it in cell["bad"])
        rows.append(f"| {cell['count']:,} | {program} | {refused:,} | {accepted:,} | {bad} |")
    return "\n".join(rows) + "\n"


def state(document: Mapping[str, Any]) -> State:
    """How far it is."""
    cell = document["cells"].get("suites", {"count": 0, "bad": []})
    return State(cell["count"], COUNT, "mutants", len(cell["bad"]))


def take(cell: dict[str, Any], found: Found) -> None:
    """Add what a block came to."""
    cell["count"] += sum(found.outcomes.values()) // len(PLANS)
    cell["outcomes"] = dict(Counter(cell["outcomes"]) + found.outcomes)
    cell["bad"] += found.bad
