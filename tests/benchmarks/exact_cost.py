"""What exact mode costs: `python -m tests.benchmarks.exact_cost [OUT] [--rounds N] [--ranks N]`.

Every round trains the digits network three ways, one after the other: float; float in as many micro-batches as exact
has shards (what smaller passes cost); exact. What counts is the ratio of median step times within a round. Beside it
the conversion alone, of 5 million gradients: floats in, integers, floats out; and how far sums are off by either way.
Prints the values and keeps them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from bench.provenance import host
from reports.intervals import plain_interval
from tests.training.ranks import sets, start
from tests.validations.sitting import origin
from training import order
from training.config import from_dict
from training.exact import Bucket, add, limit, read
from training.models import Digits

COMMAND = "python -m tests.benchmarks.exact_cost"
OUT = Path("reports/measured/exact-cost.json")
STEPS, WARM_UP = 120, 20
BATCH = 96
GRADIENTS = 5_000_000
WAYS = ("float", "pieces", "exact")


def keys(way: str, shards: int, ranks: int) -> dict[str, Any]:
    """The training of one way."""
    more: dict[str, dict[str, Any]] = {
        "float": {},
        "pieces": {"accumulate": max(1, shards // ranks)},
        "exact": {"reduction": "exact", "shards": shards},
    }
    common = {"model": "digits", "global_batch": BATCH, "steps": STEPS, "eval_every": -1, "optimizer": "adamw"}
    return {**common, "lr": 0.001, "clip_norm": 1.0, **more[way]}


def step_s(way: str, shards: int, ranks: int) -> float:
    """The median time of a step, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        job = start(Path(folder), ranks, sets(**keys(way, shards, ranks)))
        if any(codes := job.wait(600)):
            raise SystemExit(f"{way} ended with {codes}: {job.printed()}")
        return float(median(step["step_s"] for step in job.events(0, "step")[WARM_UP:]))


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


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help=f"default {OUT}")
    parser.add_argument("--rounds", type=int, default=10, help="default 10")
    parser.add_argument("--ranks", type=int, default=2, help="default 2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = {str(shards): measured(shards, options) for shards in (options.ranks, 24)}
    about = {"command": COMMAND, "machine": host(), "label": "real", "ranks": options.ranks, "batch": BATCH}
    document: dict[str, Any] = about | {
        "cells": cells,
        "errors": errors(),
        "conversion_ms": round(1e3 * conversion_s(), 3),
        "gradients": GRADIENTS,
    }
    options.out.write_text(json.dumps(document | origin(), indent=1) + "\n")
    print(f"conversion of {GRADIENTS:,} gradients, there and back: {document['conversion_ms']:.0f} ms")
    print("off the sum in double precision: " + ", ".join(f"{way} {it:.1e}" for way, it in document["errors"].items()))
    print(f"kept in {options.out}")


def measured(shards: int, options: argparse.Namespace) -> list[dict[str, float]]:
    """All rounds with so many shards: the ways' step times in seconds."""
    rounds = []
    for number in range(options.rounds):
        ways = WAYS if number % 2 else WAYS[::-1]  # so that a drift of the machine falls on all
        rounds.append({way: step_s(way, shards, options.ranks) for way in ways})
        shown = ", ".join(f"{way} {1000 * seconds:.1f} ms" for way, seconds in rounds[-1].items())
        print(f"{shards} shards, round {number + 1} of {options.rounds}: {shown}", flush=True)
    for way in WAYS[1:]:
        ratios = [one[way] / one["float"] for one in rounds]
        ends = plain_interval(median(ratios), ratios)
        said = f"({ends[0]:.2f} to {ends[1]:.2f})" if ends else "(too few rounds for an interval)"
        print(f"{options.ranks} ranks, {shards} shards: {way} takes {median(ratios):.2f} {said} times a float step")
    return rounds


if __name__ == "__main__":
    main()
