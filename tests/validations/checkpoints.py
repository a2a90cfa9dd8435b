"""Whether a checkpoint can lie, at crash points: `python -m tests.validations checkpoints [--points N]`.

For each point, drawn from a seed, several checkpoints are saved, the machine crashes somewhere in between (or the disk
fills up, or a file is damaged later), and the reader has to find an intact checkpoint, no older than what the writer
had called durable. The same points for ours, for torch's ways of saving, and for mutants of ours, which must be caught.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from tests.validations.crashes import KINDS, after_crash, damage, promised
from tests.validations.sitting import MEASURED, KeptError, keep, origin
from tests.validations.tracing import Op, recording
from tests.validations.writers import MUTANTS, STEPS, WRITERS, Found, Writer, sha256, state

FILE = MEASURED / "checkpoints.json"
COMMAND = "nox -s validate -- checkpoints"
SEED = 20_261_121
POINTS, MUTANT_POINTS, BATCH = 2000, 200, 50
OURS = ("proving-ground", "proving-ground, 4 ranks")
OUTCOMES = ("ok", "wrong", "lost", "impossible")
"""`wrong`: something was loaded that never was saved; `lost`: older than promised, or nothing; `impossible`: nothing
could be loaded, or the job could not go on."""
MODEL = "POSIX: synced data and entries stay; what was not synced may be there, missing or in part, in any order"
TRUTH = {step: sha256(state(step)) for step in range(STEPS + 1)}


def record(writer: Writer, kept: int, room: int | None = None) -> list[Op]:
    """The operations by which a writer saves its checkpoints."""
    with tempfile.TemporaryDirectory() as folder, recording(Path(folder), room) as trace, writer.broken():
        writer.save(trace, kept)
    return trace.ops


class Writing:
    """A writer's traces, recorded once for each number of checkpoints that are kept."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._whole = {kept: record(writer, kept) for kept in (1, 2)}

    def before(self, kind: str, kept: int, dice: random.Random) -> list[Op]:
        """The operations before a crash of a kind."""
        where = dice.random()
        ops = self._whole[kept]
        if kind == "full":  # saved again on a disk that takes part of the bytes, and crashed at the very end
            return record(self.writer, kept, int(where * sum(len(op.data) for op in ops)))
        return ops if kind in ("truncated", "bitflip") else ops[: 1 + int(where * len(ops))]


def outcome(writing: Writing, number: int) -> tuple[str, str]:
    """The kind of a crash point and what came of it."""
    dice = random.Random(zlib.crc32(f"{SEED} {number}".encode()))  # noqa: S311 - not for secrets
    kind = KINDS[number % len(KINDS)]
    damaged = kind in ("truncated", "bitflip")
    ops = writing.before(kind, 2 if damaged else dice.choice((1, 2)), dice)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        after_crash(ops, "kill" if damaged else kind, dice).build(root)
        if damaged:
            damage(root, writing.writer.newest(root), kind, dice)
        return kind, verdict(writing.writer, root, 1 if damaged else promised(ops))


def verdict(writer: Writer, root: Path, least: int) -> str:
    """What a reader makes of a folder in which a checkpoint of step `least` or later must be found; 0: of none."""
    try:
        with writer.broken():
            loaded: Found = writer.read(root)
    except Exception as error:  # noqa: BLE001 - whatever a reader does to its caller
        # A clear refusal, or any from a reader that knows no clear ones, is right as long as nothing was promised.
        return "ok" if not least and isinstance(error, writer.clear or Exception) else "impossible"
    if loaded is None:
        return "lost" if least else "ok"
    step, found = loaded
    if TRUTH.get(step) != found or step == 0:
        return "wrong"
    return "ok" if step >= least else "lost"


def judge(name: str, writer: Writer, points: range, counts: dict[str, Counter[str]]) -> None:
    """Add the outcomes of some points to the counts by kind."""
    writing = Writing(writer)
    for number in points:
        kind, came = outcome(writing, number)
        counts.setdefault(kind, Counter())[came] += 1
        if name in OURS and came != "ok":
            print(f"point {number} ({kind}): {came}", file=sys.stderr)


def interval(bad: int, points: int) -> list[float]:
    """Clopper and Pearson's 95 % interval of a rate."""
    low, high = stats.binomtest(bad, points).proportion_ci(method="exact")
    return [round(float(low), 6), round(float(high), 6)]


def summary(counts: dict[str, Counter[str]]) -> dict[str, Any]:
    """A writer's outcomes: all, and by kind of crash."""
    total = sum(counts.values(), Counter[str]())
    points = total.total()
    bad = points - total["ok"]
    kinds = {
        kind: {name: counts[kind][name] for name in OUTCOMES if counts[kind][name]} for kind in KINDS if kind in counts
    }
    return {"points": points, "bad": bad, "bad_rate_ci95": interval(bad, points), "kinds": kinds}


def versions() -> dict[str, str]:
    """What was measured with."""
    return {"torch": torch.__version__, "python": platform.python_version()}


def kept_before(out: Path) -> dict[str, dict[str, Any]]:
    """Name → summary of earlier sittings with the same seed and versions.

    Raises:
        KeptError: the file is something else.
    """
    try:
        document = json.loads(out.read_text()) if out.exists() else {}
        same = (document.get("seed"), document.get("versions")) == (SEED, versions())
        return {**document["writers"], **document["mutants"]} if same else {}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise KeptError(f"{out}: {error}; move it away to start afresh") from None


def as_counts(before: dict[str, Any]) -> dict[str, Counter[str]]:
    """The counts in a summary."""
    return {kind: Counter(outcomes) for kind, outcomes in before.get("kinds", {}).items()}


def document(done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is kept."""
    about = {"command": COMMAND, "label": "emulated", "model": MODEL, "seed": SEED, "versions": versions(), **origin()}
    named = {"writers": WRITERS, "mutants": MUTANTS}
    return about | {part: {name: done[name] for name in known if name in done} for part, known in named.items()}


def complete(done: dict[str, dict[str, Any]], points: int, out: Path) -> None:
    """Do what is missing, keeping what is done after every batch."""
    wanted = [(name, writer, points) for name, writer in WRITERS.items()]
    wanted += [(name, writer, min(points, MUTANT_POINTS)) for name, writer in MUTANTS.items()]
    for name, writer, most in wanted:
        counts = as_counts(done.get(name, {}))
        first = done.get(name, {}).get("points", 0)
        for start in range(first, most, BATCH):
            judge(name, writer, range(start, min(start + BATCH, most)), counts)
            done[name] = summary(counts)
            keep(out, document(done))
        print(f"{name:<26} {done[name]['points']:>6} points  {done[name]['bad']:>5} bad", flush=True)


def main(argv: Sequence[str]) -> int:
    """Exit status 1 if one of ours was bad, or a mutant was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations checkpoints", description=__doc__)
    parser.add_argument("--points", type=int, default=POINTS, metavar="N", help=f"wanted in all (default {POINTS})")
    parser.add_argument(
        "--out", type=Path, default=FILE, metavar="FILE", help=f"default: {FILE.name}, in reports/measured"
    )
    options = parser.parse_args(argv)
    if options.points < 1:
        raise KeptError(f"--points {options.points}: must be at least 1")
    done = kept_before(options.out)
    complete(done, options.points, options.out)
    missed = [name for name in MUTANTS if not done[name]["bad"]]
    for name in missed:
        print(f"not caught: {name}", file=sys.stderr)
    return 1 if missed or any(done[name]["bad"] for name in OURS if name in done) else 0
