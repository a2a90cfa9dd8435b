"""Trainers with a defect, and sound ones: `python -m tests.validations trainers --minutes 60`, as often as it takes.

Every defect of `defects.DEFECTS` in every job shape that can have it, each a small real job with one fault; and sound
trainers, seed by seed. A defect that made a difference must not be called recovered, a sound trainer must be. Whether
it made a difference is not the judge's word: it follows from hashes and samples as recorded, and from the defect's own
line in the log. All cells are decided before, none is measured twice.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.progress import clock
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import SpecError
from tests.validations import defects
from tests.validations.chaos_runs import chaos_process
from tests.validations.defects import DEFECTS, EXACT, FLOAT, LOCAL, SHRINKING, WHOLE
from tests.validations.sitting import MEASURED, ROOT, Document, Sitting, State, keep, load, origin

FILE = MEASURED / "trainers.json"
COMMAND = "nox -s validate -- trainers"
KEPT = ROOT / "runs" / "trainers"  # runs whose verdict is not as it must be
SOUND = "sound"
CONTROLS = 50  # sound trainers, seeds 1 to so many
SEED = 1  # of all jobs with a defect
AT_ONCE = 6  # cells in one run: they share its start
LOOK_S = 0.2  # between two looks whether a run is over
START_S = 12.0  # of a run, beside its cells
RECOVERED, FAILED = "recovered", "failed"
HASHED = ("parameters", "buffers", "optimizer")


@dataclass(frozen=True)
class Shape:
    """One kind of job: nodes, the case's keys, and whether a sound one stays bitwise as its twin."""

    words: str
    nodes: int
    case: Mapping[str, Any]
    fault: Mapping[str, Any]
    training: Mapping[str, Any]
    bitwise: bool
    cell_s: float  # what a cell takes, until one was measured


KILL = {"kind": "worker_kill"}
TRAINING = {
    "optimizer": "adamw", "lr": 0.002, "lr_schedule": "cosine", "weight_decay": 0.01, "clip_norm": 0.5,
    "checkpoint_every": 8, "fingerprint_every": 8, "ledger": True,
}  # fmt: skip
SHAPES: dict[str, Shape] = {
    WHOLE: Shape(
        "restart at full size", 2, {"mechanism": "restart", "twins": [2]}, KILL, {"dropout": 0.1},
        bitwise=True, cell_s=10,
    ),
    SHRINKING: Shape(
        "restart that shrinks", 3, {"mechanism": "restart", "min_nodes": 2, "twins": [3]},
        {"kind": "node_kill", "hold_s": 5}, {"dropout": 0.1}, bitwise=False, cell_s=25,
    ),
    EXACT: Shape(
        "live, exact sums", 3, {"mechanism": "live", "min_nodes": 2, "twins": [3]}, KILL,
        {"dropout": 0.1, "reduction": "exact", "shards": 12}, bitwise=True, cell_s=10,
    ),
    FLOAT: Shape(
        "live, float sums", 3, {"mechanism": "live", "min_nodes": 2, "twins": [3]}, KILL, {"dropout": 0.1},
        bitwise=False, cell_s=12,
    ),
    LOCAL: Shape(
        "local updates", 2, {"mechanism": "restart", "twins": [2]}, KILL,
        {"dropout": 0.1, "updates": "diloco", "sync_every": 8}, bitwise=True, cell_s=10,
    ),
}  # fmt: skip
"""Name → the job. Faults come 20 to 40 steps after the start: there is a checkpoint, and the second epoch is near."""


@dataclass(frozen=True)
class Cell:
    """One job: a defect (or none) in a shape, from a seed."""

    defect: str
    shape: str
    seed: int = SEED

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.defect} {self.shape}" + (f" {self.seed}" if self.defect == SOUND else "")

    @property
    def case(self) -> str:
        """Its name in a suite."""
        return self.defect.replace("_", "-")

    @property
    def common(self) -> bool:
        """Whether the undisturbed twin has the defect as well."""
        return self.defect in DEFECTS and DEFECTS[self.defect].common

    def table(self) -> dict[str, Any]:
        """Its case of a suite."""
        shape, defect = SHAPES[self.shape], DEFECTS.get(self.defect)
        after = 20 + sum(self.key.encode()) % 21
        return {
            "name": self.case, "workload": "digits", "global_batch": 48, "steps": 400, "warmup_steps": 8,
            "estimated_step_s": 0.03, "link_mbps": 40, "patience_s": 45, **shape.case,
            "training": {**TRAINING, **shape.training, **(defect.training if defect else {})},
            "faults": [{**shape.fault, "after_steps": after}],
            **({"command": {"entry": f"tests.validations.defective:{self.defect}"}} if defect else {}),
        }  # fmt: skip


def batches() -> list[list[Cell]]:
    """All cells in the order in which they are run; those of one list share a run.

    Common defects are compared with a sound job's twin, so each list of them begins with a sound job.
    """
    found = []
    for shape in SHAPES:
        here = [Cell(name, shape) for name, defect in DEFECTS.items() if shape in defect.shapes]
        found.append([Cell(SOUND, shape), *(cell for cell in here if cell.common)])
        rest = [cell for cell in here if not cell.common]
        found += [rest[at : at + AT_ONCE] for at in range(0, len(rest), AT_ONCE)]
    shapes = list(SHAPES)
    known = {cell.key for batch in found for cell in batch}
    controls = [Cell(SOUND, shapes[(seed - 1) % len(shapes)], seed) for seed in range(1, CONTROLS + 1)]
    return found + [[cell] for cell in controls if cell.key not in known]


def main(argv: list[str]) -> int:
    """One sitting; exit status 1 if a defect that mattered was called recovered, or a sound trainer was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations trainers", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side (default 2): a run is mostly waiting")
    parser.add_argument("--only", action="append", metavar="TEXT", help="cells with this in their name; repeatable")
    parser.add_argument(
        "--out", type=Path, default=FILE, metavar="FILE", help=f"default: {FILE.name}, where others are"
    )
    options = parser.parse_args(argv)
    if options.minutes <= 0 or options.jobs < 1:
        raise SpecError(f"--minutes {options.minutes:g} --jobs {options.jobs}: must be above 0")
    sitting, document = Sitting(options.minutes), load(options.out, COMMAND, state, partial=bool(options.only))
    wanted = [it for it in (Batch(cells, tuple(options.only or ())) for cells in batches()) if it.chosen]
    print(f"{sum(map(len, batches()))} cells, {expected(document, wanted, options.jobs)} to do")
    sit(document, wanted, sitting, options)
    print("\n".join(told(document)))
    return int(not fine(document))


@dataclass(frozen=True)
class Batch:
    """Cells that share a run, and which of them are asked for."""

    cells: Sequence[Cell]
    only: tuple[str, ...] = ()

    @property
    def chosen(self) -> list[Cell]:
        """Those with one of the asked texts in their name; all, where none is asked for."""
        return [cell for cell in self.cells if not self.only or any(text in cell.key for text in self.only)]

    def due(self, document: Document) -> list[Cell]:
        """Those not known yet, before them what they are compared with."""
        found = [cell for cell in self.chosen if cell.key not in document["cells"]]
        return [self.cells[0], *found] if any(it.common for it in found) and found[0] != self.cells[0] else found


@dataclass(frozen=True)
class Playing:
    """A run that is under way."""

    batch: Batch
    cells: Sequence[Cell]
    folder: Path
    process: subprocess.Popen[bytes]
    begun: float  # time.monotonic()


def sit(document: Document, wanted: Sequence[Batch], sitting: Sitting, options: argparse.Namespace) -> None:
    """Measure what is not known yet, so many runs side by side, as far as there is time.

    A run that broke off is taken up again after the cell that broke it.
    """
    waiting, playing = deque(wanted), list[Playing]()
    with ExitStack() as begun:
        while True:
            while waiting and len(playing) < options.jobs:
                batch = waiting.popleft()
                if (cells := batch.due(document)) and sitting.fits(seconds(document, cells)):
                    print(f"{', '.join(cell.key for cell in cells)} · {sitting.left()}", flush=True)
                    playing.append(begun.enter_context(played(batch, cells)))
            if not playing:
                return
            for one in first_over(playing):
                playing.remove(one)
                keep_what_came(document, one, options)
                waiting.appendleft(one.batch)


def first_over(playing: Sequence[Playing]) -> list[Playing]:
    """Those that have ended, once there is one."""
    while not (over := [it for it in playing if it.process.poll() is not None]):
        time.sleep(LOOK_S)
    return over


def keep_what_came(document: Document, one: Playing, options: argparse.Namespace) -> None:
    """Keep the cells of a run that is over, and what a cell took.

    Raises:
        SpecError: nothing came of it.
    """
    before = len(document["cells"])
    take(document, one.cells, rundir.find(one.folder, "trainers"))
    new = len(document["cells"]) - before
    if not new:
        raise SpecError(f"{one.cells[0].key}: no result came of its run")
    each_s = (time.monotonic() - one.begun) / new
    document.setdefault("runs", []).append(
        {"shape": one.cells[0].shape, "cells": new, "cell_s": round(each_s, 1), "jobs": options.jobs, **origin()}
    )
    keep(options.out, document)
    shutil.rmtree(one.folder, ignore_errors=True)


@contextmanager
def played(batch: Batch, cells: Sequence[Cell]) -> Iterator[Playing]:
    """One run of these cells, as a person would start it; ended with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, begun = Path(name), time.monotonic()
        file = folder / "trainers.toml"
        file.write_text(suite(cells))
        with chaos_process(folder, str(file), log=folder / "log") as process:
            yield Playing(batch, cells, folder, process, begun)


def suite(cells: Sequence[Cell]) -> str:
    """The suite of some cells of one shape and seed."""
    first = cells[0]
    head = {
        "title": f"Trainers: {SHAPES[first.shape].words}", "nodes": [SHAPES[first.shape].nodes], "repeats": 1,
        "disk_mb": 16, "volume_mb": 64, "seed": first.seed,
    }  # fmt: skip
    lines = [f"{name} = {toml(value)}" for name, value in head.items()]
    for cell in cells:
        lines += ["", "[[case]]", *(f"{name} = {toml(value)}" for name, value in cell.table().items())]
    return "\n".join(lines) + "\n"


def toml(value: object) -> str:
    """A value as TOML has it; JSON's numbers, strings and lists of them are the same."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {toml(it)}" for name, it in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


# --- what came of a run -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """A run as this validation reads it, without the report's help."""

    plan: Sequence[Mapping[str, Any]]
    events: Mapping[str, Sequence[Mapping[str, Any]]]  # trial → its events in the order of time
    logs: Path

    def job(self, case: str) -> str:
        """The trial of a case that has faults."""
        return str(next(it["id"] for it in self.plan if it["case"] == case and it["faults"]))

    def twin(self, case: str) -> str:
        """The first undisturbed trial of a case, at full size."""
        found = [it for it in self.plan if it["twin_of"] == case and it["role"] == "twin"]
        return str(max(found, key=lambda it: int(it["nodes"]))["id"])

    def ended(self, case: str) -> tuple[bool, str]:
        """(whether all trials of a case have ended, why one of them failed)."""
        own = [str(it["id"]) for it in self.plan if case in (it["case"], it["twin_of"])]
        ends = [next((e for e in self.events.get(one, ()) if e["event"] == "trial_end"), None) for one in own]
        failed = [str(end["why"]) for end in ends if end and not end["ok"]]
        return all(ends), failed[0] if failed else ""

    def acted(self, trial: str) -> bool:
        """Whether a defect said that it acts."""
        return any(defects.ACTED in file.read_text(errors="replace") for file in self.logs.glob(f"{trial}.*.log"))

    def states(self, trial: str) -> dict[int, frozenset[tuple[str, ...]]]:
        """Step → hashes of weights, buffers and optimizers of its ranks, as recorded last."""
        last: dict[tuple[int, str], tuple[str, ...]] = {}
        for it in self.events.get(trial, ()):
            if it["event"] == "fingerprint":
                last[it["step"], it["source"]] = tuple(str(it.get(f"{part}_sha256")) for part in HASHED)
        found: dict[int, set[tuple[str, ...]]] = {}
        for (step, _), hashes in last.items():
            found.setdefault(step, set()).add(hashes)
        return {step: frozenset(hashes) for step, hashes in found.items()}

    def samples(self, trial: str) -> dict[int, list[int]]:
        """Step → the samples that its ranks said they learned from, in the generation that made it last."""
        last: dict[int, tuple[int, list[int]]] = {}
        for it in self.events.get(trial, ()):
            if it["event"] == "step" and "rows" in it:
                generation, ids = last.get(it["step"], (0, []))
                kept = ids if generation == it["generation"] else []
                last[it["step"]] = it["generation"], [*kept, *it["rows"]]
        return {step: sorted(ids) for step, (_, ids) in last.items()}


def recorded(store: RunDir) -> Recorded:
    """The plan and the events of a run, each with its trial."""
    events: dict[str, list[Mapping[str, Any]]] = {}
    for it in rundir.read_events(store.path / "history.jsonl"):
        events.setdefault(str(it.get("trial")), []).append(it)
    return Recorded(store.read("plan")["trials"], events, store.logs)


def judged(store: RunDir) -> Mapping[str, Any]:
    """What the report says of a run; made now where a trial failed for good, which ends a run before its report."""
    if not (store.path / "results.json").exists():
        command = [sys.executable, "-m", "proving_ground.reports", str(store.path), "--no-html", "--quiet"]
        subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    return dict(store.read("results"))


def take(document: Document, cells: Sequence[Cell], store: RunDir) -> None:
    """Keep what came of each cell that is not known yet: of a run that broke off, of the cell that broke it alone."""
    run, results = recorded(store), judged(store)
    for cell in cells:
        over, failed = run.ended(cell.case)
        if cell.key in document["cells"] or not (over or failed):
            continue
        nothing: dict[str, Any] = {"outcome": FAILED, "why": "", "verdicts": {}}
        row = next((it for it in results["trials"] if it["trial"] == run.job(cell.case)), nothing)
        fails = sorted(check for check, value in row["verdicts"].items() if value == "fail")
        found = {"outcome": FAILED if failed else row["outcome"], "why": (failed or row["why"])[:300], "failed": fails}
        whole = {it["check"] for it in results["verdicts"] if it["verdict"] == "fail"
                 and it["where"].get("trial") in (run.job(cell.case), run.twin(cell.case))}  # fmt: skip
        found |= {"also": sorted(whole - set(fails)), **effect(cell, run), "shape": cell.shape, "defect": cell.defect}
        document["cells"][cell.key] = {**found, "seed": cell.seed, **origin()}
        if bad(document["cells"][cell.key]):
            shutil.copytree(store.path, KEPT / cell.key.replace(" ", "-"), dirs_exist_ok=True)
        print(f"  {line(document['cells'][cell.key])}", flush=True)


def effect(cell: Cell, run: Recorded) -> dict[str, Any]:
    """Whether a defect acted, whether it made a difference to what was recorded (None: nobody can tell), and the sum.

    A common defect's twin is compared with the sound job's; any other defect's job with its own twin. Where sums are
    floats and the world changes its size, a difference of hashes says nothing: there the defect's own word decides.
    """
    if cell.defect == SOUND:
        return {}
    job = run.twin(cell.case) if cell.common else run.job(cell.case)
    twin = run.twin(SOUND if cell.common else cell.case)
    acts = run.acted(job)
    learned = apart(run.samples(job), run.samples(twin), full=True)
    decidable = cell.common or SHAPES[cell.shape].bitwise
    differs = (
        (apart(run.states(job), run.states(twin)) if decidable else None) or learned or (False if decidable else None)
    )
    return {"acted": acts, "differs": differs, "effective": acts and differs is not False}


def apart(one: Mapping[int, Any], other: Mapping[int, Any], *, full: bool = False) -> bool:
    """Whether two records differ at a step that both have; with `full` only where both have equally much."""
    shared = [step for step in one if step in other and not (full and len(one[step]) != len(other[step]))]
    return any(one[step] != other[step] for step in shared)


# --- what it comes to ---------------------------------------------------------------------------------------------


def seconds(document: Document, cells: Sequence[Cell]) -> float:
    """What a run of some cells takes, by those of the shape that were measured."""
    shape = cells[0].shape
    told_s = [it["cell_s"] for it in document.get("runs", []) if it.get("shape") == shape]
    return START_S + len(cells) * (median(told_s) if told_s else SHAPES[shape].cell_s)


def expected(document: Document, wanted: Sequence[Batch], jobs: int) -> str:
    """How many cells are left, and how long they take."""
    left = [due for batch in wanted if (due := batch.due(document))]
    whole_s = sum(seconds(document, it) for it in left) / jobs
    return f"{sum(map(len, left))} cells in {len(left)} runs, about {clock(whole_s)}"


def bad(cell: Mapping[str, Any]) -> bool:
    """Whether a cell's outcome is not as it must be."""
    if cell["defect"] == SOUND:
        return bool(cell["outcome"] != RECOVERED)
    return bool(cell["effective"] and cell["outcome"] == RECOVERED)


def fine(document: Document) -> bool:
    """Whether no cell so far is bad."""
    return not any(map(bad, document["cells"].values()))


def state(document: Mapping[str, Any]) -> State:
    """How far it is."""
    cells = document["cells"].values()
    return State(len(cells), sum(map(len, batches())), "cells", sum(map(bad, cells)))


def line(cell: Mapping[str, Any]) -> str:
    """One cell, for people."""
    mark = "✗" if bad(cell) else "✓"
    about = "" if cell["defect"] == SOUND else ", effective" if cell["effective"] else ", no effect"
    checks = ", ".join([*cell["failed"], *cell["also"]])
    return f"{mark} {cell['defect']}, {cell['shape']}: {cell['outcome']}{about}" + (f" ({checks})" if checks else "")


def table(document: Mapping[str, Any]) -> str:
    """One row a shape: its defects, those that made a difference, and what was said of those; its sound trainers."""
    head = ["job", "defects", "effective", "wrong", "stuck, slow or not proven", "recovered", "sound", "recovered"]
    rows = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    for shape, about in SHAPES.items():
        cells = [it for it in document["cells"].values() if it["shape"] == shape]
        defects = [it for it in cells if it["defect"] != SOUND]
        effective = [it for it in defects if it["effective"]]
        said = Counter(it["outcome"] for it in effective)
        sound = [it for it in cells if it["defect"] == SOUND]
        good = sum(it["outcome"] == RECOVERED for it in sound)
        rest = len(effective) - said["wrong"] - said[RECOVERED]
        counts = (len(defects), len(effective), said["wrong"], rest, said[RECOVERED], len(sound), good)
        rows.append(f"| {about.words} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows) + f"\n\nCells measured: {len(document['cells'])} of {sum(map(len, batches()))}.\n"


def told(document: Mapping[str, Any]) -> list[str]:
    """For each shape effective defects by outcome; what was missed; the sound trainers."""
    cells = list(document["cells"].values())
    lines = [row(name, [it for it in cells if it["shape"] == name]) for name in SHAPES]
    sound = [it for it in cells if it["defect"] == SOUND]
    missed = [it for it in cells if it["defect"] != SOUND and bad(it)]
    idle = [it for it in cells if it["defect"] != SOUND and not it["effective"]]
    lines.append(f"sound trainers: {sum(not bad(it) for it in sound)} of {len(sound)} recovered")
    lines += [
        f"  not recovered: {it['shape']}, seed {it['seed']}: {it['outcome']}: {it['why']}" for it in filter(bad, sound)
    ]
    lines.append(f"effective defects called recovered: {len(missed)}" + named(missed))
    lines.append(f"defects without an effect: {len(idle)}" + named(idle))
    return lines


def named(cells: Sequence[Mapping[str, Any]]) -> str:
    """Which, by shape."""
    found: dict[str, list[str]] = {}
    for it in cells:
        found.setdefault(it["shape"], []).append(it["defect"])
    return "".join(f"\n  {shape}: {', '.join(names)}" for shape, names in found.items())


def row(shape: str, cells: Sequence[Mapping[str, Any]]) -> str:
    """One shape's defects: how many had an effect, and what was said of those."""
    own = [it for it in cells if it["defect"] != SOUND]
    outcomes = Counter(it["outcome"] for it in own if it["effective"])
    said = ", ".join(f"{count} {name}" for name, count in outcomes.most_common()) or "none"
    return f"{SHAPES[shape].words}: {len(own)} defects, {outcomes.total()} effective: {said}"
