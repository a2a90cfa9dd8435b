"""Search directories written by hand, as driver and trainers would have: for the tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proving_ground.bench.provenance import provenance
from proving_ground.search import ledger, store
from proving_ground.search.spec import search_from
from proving_ground.search.store import SearchDir

ASKED: Mapping[str, Any] = {
    "name": "made", "title": "Made by hand", "algorithm": "asha", "trials": 3, "concurrent": 2, "steps": 40,
    "eval_every": 10, "metric": "accuracy", "space": {"lr": {"loguniform": [0.001, 1.0]}},
}  # fmt: skip
START_T, STEP_S, ANSWER_S = 5.0, 0.1, 0.05
Records = list[dict[str, Any]]


def trial(name: str, lr: float, values: Sequence[float], end: str, begin_t: float, **more: object) -> Records:
    """The ledger's records of one trial; an evaluation every ten steps."""
    about: dict[str, Any] = {"sitting": 1, "trial": name}
    made: Records = [{"t": begin_t, "event": ledger.STARTED, **about, "params": {"lr": lr}}]
    for at, value in enumerate(values, 1):
        t = begin_t + 10 * at * STEP_S
        made.append({"t": t, "event": ledger.REPORTED, **about, "step": 10 * at, "value": value})
    return [*made, {"t": begin_t + 10 * len(values) * STEP_S + 0.5, "event": end, **about, **more}]


def events(made: Records) -> list[str]:
    """What the trainer of that trial recorded: a start, its steps, and how long each answer took."""
    begin = made[0]["t"] + 0.2
    lines: Records = [{"t": begin, "event": "start", "rank": 0, "world_size": 1, "pid": 1, "wall_s": begin}]
    for step in range(1, max([it.get("step", 0) for it in made]) + 1):
        t = begin + step * STEP_S
        lines.append({"t": t, "event": "step", "step": step, "samples": 64})
        if step % 10 == 0:
            lines.append({"t": t + ANSWER_S, "event": "measure", "name": "tune_report", "unit": "s", "value": ANSWER_S})
    return [json.dumps(it) for it in lines]


def three() -> list[Records]:
    """One in full, one stopped early, one that failed."""
    return [
        trial("t001", 0.1, [0.3, 0.5, 0.8, 0.9], ledger.FINISHED, 10.0),
        trial("t002", 0.002, [0.1], ledger.STOPPED, 10.0, why="asha"),
        trial("t003", 0.9, [], ledger.FAILED, 12.0, why="the loss of step 3 is nan"),
    ]


def write(root: Path, trials: Sequence[Records], asked: Mapping[str, Any] = ASKED, *, why: str = "") -> SearchDir:
    """A search's directory, sealed."""
    run_dir = store.create(root, search_from(asked, "made"))
    run_dir.write("provenance", provenance(["search", "run"], 1, 0.0))
    carry_out(run_dir, trials, why)
    store.seal(run_dir, complete=True)
    return run_dir


def carry_out(run_dir: SearchDir, trials: Sequence[Records], why: str = "") -> None:
    """Write what driver and trainers record of these trials."""
    records: Records = [
        {"t": 1.0, "event": ledger.SITTING, "sitting": 1, "wall_s": 1.0},
        {"t": START_T, "event": ledger.READY, "sitting": 1, "seconds": 4.0},
        *sorted((it for made in trials for it in made), key=lambda it: float(it["t"])),
    ]
    why = why or "every trial has ended"
    records.append({"t": records[-1]["t"] + 1, "event": ledger.OVER, "sitting": 1, "why": why})
    run_dir.ledger.write_text("".join(json.dumps(it) + "\n" for it in records))
    for made in trials:
        run_dir.of_trial(made[0]["trial"]).write_text("\n".join(events(made)) + "\n")
