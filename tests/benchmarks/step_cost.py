"""What exact sums and live recovery cost where nothing fails: `python -m tests.benchmarks.step_cost [OUT]`.

Jobs of the digits network on the loopback interface take turns of some steps: float; live; exact; the same live; exact
with more shards, and float in as many passes as that has, which says what smaller passes cost. Each round starts all
jobs anew; what counts is the ratio of step times within a round. Beside it the conversion alone, of 5 million
gradients: floats in, integers, floats out; and how far sums are off by either way. Prints the values and keeps them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from bench.provenance import host
from reports.recovery.healthy import Healthy, over_rounds
from tests.benchmarks.turns import taking_turns
from tests.training.ranks import sets
from tests.validations.sitting import origin
from training import order
from training.config import from_dict
from training.exact import Bucket, add, limit, read
from training.models import Digits

COMMAND = "python -m tests.benchmarks.step_cost"
OUT = Path("reports/measured/step-cost.json")
TURN, WARM_UP = 14, 2  # steps of a turn, and those of them that are left out
TURNS = 3  # of each job: one process is up to a fifth faster than another of the same for as long as it lives
RANKS, SHARDS = 2, 24
BATCH = 96
GRADIENTS = 5_000_000
BASE = "float"
EXACT = {"reduction": "exact", "shards": RANKS}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    BASE: ("run", {}),
    "live": ("live", {}),
    "exact": ("run", EXACT),
    "live, exact": ("live", EXACT),
    "float in 24 passes": ("run", {"accumulate": SHARDS // RANKS}),
    "exact, 24 shards": ("run", EXACT | {"shards": SHARDS}),
}
"""Way → how it is started, and what is different in its configuration."""


def words(how: str, more: Mapping[str, Any]) -> list[str]:
    """What a job of a way is started by."""
    keys = sets(**{
        "model": "digits", "global_batch": BATCH, "steps": 10**6, "eval_every": -1, "optimizer": "adamw", "lr": 0.001,
        "clip_norm": 1.0, "last_batch": "carry", "timeout_s": 0.0, **more,
    })  # fmt: skip
    return ["live", "run", *keys] if how == "live" else ["run", *keys]


def step_times() -> dict[str, float]:
    """Way → its step in seconds, of new processes: the median over some turns of all; the first is for warming up."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {way: words(*how) for way, how in WAYS.items()}
        with taking_turns(Path(folder), jobs, RANKS, TURN) as turns:
            for number in range(TURNS + 1):
                for way in list(WAYS)[:: 1 if number % 2 else -1]:  # so that a drift of the machine falls on all
                    turns.turn(way)
            told = {way: turns.ranks[way].events(0, "step") for way in WAYS}
    return {way: median(middle(steps, turn) for turn in range(1, TURNS + 1)) for way, steps in told.items()}


def middle(steps: Sequence[Mapping[str, Any]], turn: int) -> float:
    """The median step of one turn, in seconds, from end to end: what a live job agrees on between two steps counts."""
    ends = [it["t"] for it in steps[turn * TURN + WARM_UP - 1 : (turn + 1) * TURN]]
    return float(median(later - before for before, later in pairwise(ends)))


def conversion_s() -> float:
    """Seconds from a shard's gradients to their sums, and from the sums back, for `GRADIENTS` of them."""
    parameter = nn.Parameter(torch.zeros(GRADIENTS))
    bucket, gradients = Bucket([parameter], limit(24)), torch.randn(GRADIENTS)
    times = []
    for _ in range(5):
        parameter.grad = gradients.clone()
        begin = time.perf_counter()
        bucket.take()
        bucket.give()
        times.append(time.perf_counter() - begin)
    return median(times[1:])


def errors(shards: int = 24, seed: int = 0) -> dict[str, float]:
    """How far the sum of real gradients is off the one in double precision, relative (norms), by either way."""
    config = from_dict({"model": "digits", "global_batch": BATCH, "seed": seed})
    torch.manual_seed(seed)
    task = Digits(config)
    model = task.model()
    batch = order.global_batch_rows(task.rows, BATCH, seed, 0)
    found = torch.stack([gradient(task, model, order.share(batch, shard, shards)) for shard in range(shards)])
    true, floats, exact = found.double().sum(0), torch.zeros(found.shape[1]), torch.zeros(found.shape[1])
    sums = torch.zeros(found.shape[1] + 1, dtype=torch.int64)
    for one in found:
        floats += one
        add(one.clone(), sums, limit(shards))
    read(sums, exact)
    return {way: float((it.double() - true).norm() / true.norm()) for way, it in (("float", floats), ("exact", exact))}


def gradient(task: Digits, model: nn.Module, rows: order.Rows) -> torch.Tensor:
    """All gradients of one shard, flat."""
    model.zero_grad()
    (task.loss(model, task.batch("train", rows)) / BATCH).backward()  # type: ignore[no-untyped-call]
    return torch.cat([it.grad.flatten().clone() for it in model.parameters() if it.grad is not None])


def against(times: Mapping[str, Sequence[float]], way: str) -> Healthy:
    """How much longer a way's step is than the base's, over the rounds."""
    return over_rounds([mine / its for mine, its in zip(times[way], times[BASE], strict=True)])


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help=f"default {OUT}")
    parser.add_argument("--rounds", type=int, default=40, help="default 40, of about 25 s each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(1, options.rounds + 1):
        for way, found in step_times().items():
            times[way].append(found)
        shown = ", ".join(f"{way} {1000 * found[-1]:.1f} ms" for way, found in times.items())
        print(f"round {number} of {options.rounds}: {shown}", flush=True)
    about = {"command": COMMAND, "machine": host(), "label": "real", "ranks": RANKS, "batch": BATCH}
    document: dict[str, Any] = about | {
        "cells": {way: [round(it, 6) for it in each] for way, each in times.items()},
        "errors": errors(),
        "conversion_ms": round(1e3 * conversion_s(), 3),
        "gradients": GRADIENTS,
    }
    options.out.write_text(json.dumps(document | origin(), indent=1) + "\n")
    for way, each in times.items():
        said = "" if way == BASE else f", against float: {against(times, way).words}"
        print(f"{way}: {1000 * median(each):.1f} ms{said}")
    print(f"conversion of {GRADIENTS:,} gradients, there and back: {document['conversion_ms']:.0f} ms")
    print("off the sum in double precision: " + ", ".join(f"{way} {it:.1e}" for way, it in document["errors"].items()))
    print(f"kept in {options.out}")


if __name__ == "__main__":
    main()
