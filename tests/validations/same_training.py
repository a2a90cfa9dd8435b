"""Is it still the same training? Random schedules of kills, shrinking and regrowing against undisturbed runs.

`python -m tests.validations same-training`: each sitting plays as many schedules as its minutes allow. Each must end
bitwise where a run that nobody disturbed ends, with every sample learned from exactly once; the judge is the recovery
report's. The first wrong one stops everything, and its files are kept: `--seed` plays it again.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proving_ground.reports.recovery import results
from proving_ground.reports.recovery.jobs import collect
from tests.training.ranks import Event, Ranks
from tests.validations import schedules
from tests.validations.schedules import Schedule, StuckError
from tests.validations.sitting import MEASURED, ROOT, Document, Sitting, State, keep, load, origin

FILE = MEASURED / "same-training.json"
COMMAND = "nox -s validate -- same-training"
SCHEDULES = 300
SCHEDULE_S = 15.0  # what one may take, before it is known
KEPT = ROOT / "runs" / "same-training"
SAME = "same"


def main(argv: list[str]) -> int:
    """One sitting; exit status 1 at the first schedule that did not end as it must."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations same-training", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument(
        "--schedules",
        type=int,
        default=SCHEDULES,
        help=f"over all sittings (default {SCHEDULES}); the seeds are 1 to N",
    )
    parser.add_argument("--seed", type=int, help="play this schedule only, and keep nothing but its files")
    options = parser.parse_args(argv)
    if options.seed is not None:
        row = played(schedules.draw(options.seed), KEPT)
        print(line(row))
        return int(row["outcome"] != SAME)
    sitting, document = Sitting(options.minutes), load(FILE, COMMAND, state, anywhere=True)
    rows: list[dict[str, Any]] = document["cells"].setdefault("schedules", [])
    while len(rows) < options.schedules and sitting.fits(max([SCHEDULE_S, *(row["wall_s"] for row in rows[-9:])])):
        row = played(schedules.draw(1 + len(rows)), KEPT)
        rows.append(row)
        document.setdefault("runs", {}).setdefault(str(origin()["commit"]), origin()["date"])
        keep(FILE, document)
        print(f"{len(rows)} of {options.schedules} · {line(row)} · {sitting.left()}", flush=True)
        if row["outcome"] != SAME:
            return 1
    print(told(document))
    return int(not fine(document))


def played(schedule: Schedule, kept: Path, mutant: str = "") -> dict[str, Any]:
    """Play one schedule; what came of it. Files of a wrong one go to `kept`."""
    begin, seed = time.monotonic(), schedule.seed
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        twin = schedules.begin_twin(schedule, folder / "twin")
        try:
            worlds = schedules.live(schedule, folder, mutant)
            schedules.end_by_itself(twin, "the twin")
            outcome, why = judged(schedule, schedules.told(worlds, "job"), schedules.told([twin], "twin"))
            row = about(schedule, worlds) | {"outcome": outcome} | ({"why": why} if why else {})
        except StuckError as error:
            row = {"seed": seed, "outcome": "stuck", "why": str(error)}
        finally:
            schedules.end(twin)
        if row["outcome"] != SAME:
            shutil.copytree(folder, kept / str(seed), dirs_exist_ok=True)
            row["why"] += f"; its files are in {kept.name}/{seed}, --seed {seed} plays it again"
    return row | {"wall_s": round(time.monotonic() - begin, 1)}


def judged(schedule: Schedule, job: Sequence[Event], twin: Sequence[Event]) -> tuple[str, str]:
    """(`same`, `different`, `samples` or `unknown`, why), by the recovery report's checks of the whole job."""
    own = {"case": "schedule", "training": schedule.keys, "steps": schedule.keys["steps"], "seed": schedule.seed}
    plans = [
        {**own, "id": "job", "nodes": max(schedule.sizes), "faults": [{"id": "f1", "kind": "schedule"}]},
        {**own, "id": "twin", "nodes": schedule.twin_size, "faults": [], "twin_of": "schedule"},
    ]
    records = [record for name, events in (("job", job), ("twin", twin)) for record in framed(name, events)]
    evidence = [one for one in results.gather(plans, collect(records, plans)) if one.job.id == "job"]
    verdicts = [(found["check"], found["verdict"], found["why"]) for found in results.of_jobs(evidence, unsealed=False)]
    for value, check, outcome in (
        ("fail", "exactly_once", "samples"),
        ("fail", "same_training", "different"),
        ("unknown", "exactly_once", "unknown"),
        ("unknown", "same_training", "unknown"),
    ):
        if whys := [why for name, found, why in verdicts if (name, found) == (check, value)]:
            return outcome, whys[0]
    return at_the_end(job, twin)


def framed(trial: str, events: Sequence[Event]) -> list[Event]:
    """A trial's records with its beginning and end."""
    first, last = {"t": events[0]["t"] - 1, "event": "trial_start"}, {"t": events[-1]["t"] + 1, "event": "trial_end"}
    frame = [{**one, "trial": trial, "source": "harness"} for one in (first, last | {"ok": True, "why": ""})]
    return [frame[0], *events, frame[1]]


def at_the_end(job: Sequence[Event], twin: Sequence[Event]) -> tuple[str, str]:
    """The plain comparison beside the report's: hashes of the last step on every rank."""
    ends = [[event["parameters_sha256"] for event in events if event["event"] == "end" and event["reason"] == "done"]
            for events in (job, twin)]  # fmt: skip
    if not all(ends) or len({*ends[0], *ends[1]}) != 1:
        return "different", f"parameters at the end: {sorted({*ends[0]})}, the twin's are {sorted({*ends[1]})}"
    step = max(event["step"] for event in job if event["event"] == "end")
    last = [event for event in (*job, *twin) if event["event"] == "fingerprint" and event["step"] == step]
    states = {(event["parameters_sha256"], event["optimizer_sha256"]) for event in last}
    if len(states) != 1:
        return "different", f"{len(states)} different states at step {step}"
    return SAME, ""


def about(schedule: Schedule, worlds: Sequence[Ranks]) -> dict[str, Any]:
    """What happened, small enough to keep."""
    codes = [process.exitcode for world in worlds[:-1] for process in world.processes]
    return {
        "seed": schedule.seed,
        "sizes": schedule.sizes,
        "twin": schedule.twin_size,
        "changes": [f"{change.how} {change.phase}".strip() for change in schedule.changes],
        "steps": schedule.keys["steps"],
        "killed": codes.count(-9),
        "resumed": [world.events(0, "resume")[0]["step"] if world.events(0, "resume") else 0 for world in worlds[1:]],
        "sha256": worlds[-1].events(0, "end")[0]["parameters_sha256"][:16],
    }


def line(row: Mapping[str, Any]) -> str:
    """One schedule, for people."""
    if "sizes" not in row:
        return f"seed {row['seed']}: {row['outcome']}: {row['why']}"
    sizes = "→".join(map(str, row["sizes"]))
    why = f": {row['why']}" if "why" in row else ""
    return f"seed {row['seed']}: {sizes} ranks, twin {row['twin']}: {row['outcome']}{why} ({row['wall_s']:.0f} s)"


def told(document: Document) -> str:
    """All schedules so far, in a line."""
    rows = document["cells"].get("schedules", [])
    outcomes = Counter(row["outcome"] for row in rows)
    changes = sum(len(row.get("changes", ())) for row in rows)
    ends = ", ".join(f"{count} {name}" for name, count in outcomes.items()) or "none"
    return f"{len(rows)} schedules, {changes} changes of membership: {ends}"


def state(document: Mapping[str, Any]) -> State:
    """How far it is."""
    rows = document["cells"].get("schedules", [])
    return State(len(rows), SCHEDULES, "schedules", sum(row["outcome"] != SAME for row in rows))


def fine(document: Document) -> bool:
    """Whether every schedule so far ended as it must."""
    return all(row["outcome"] == SAME for row in document["cells"].get("schedules", []))
