"""What exact sums, live recovery and reading ahead cost where nothing fails.

`python -m tests.benchmarks.step_cost [OUT]`.
Jobs of the digits network on the loopback interface take turns of some steps: exact, exact with more shards, and live
ones, which are compared with themselves: half of their turns go without (`turns`); float, and float in as many passes
as there are shards, which says what smaller passes cost. Each round starts all jobs anew; what counts is the ratio of
neighbouring turns. Beside it what live recovery does in the background; the conversion alone, of 5 million gradients:
floats in, integers, floats out; and how far sums are off by either way. Adds its rounds to those of earlier sittings.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from proving_ground.reports.recovery.healthy import Healthy, over_rounds
from proving_ground.training.config import from_dict
from proving_ground.training.data import order
from proving_ground.training.exchange.exact import Bucket, add, limit, read
from proving_ground.training.models.digits import Digits
from tests.benchmarks.turns import Jobs, is_whole, taking_turns
from tests.training.ranks import sets
from tests.validations.sitting import KeptError, keep, load, origin

COMMAND = "python -m tests.benchmarks.step_cost"
OUT = Path("reports/measured/step-cost.json")
TURN, WARM_UP = 8, 2  # steps of a turn, and those of them that are left out
PAIRS = 20  # of turns of each job in a round; of float ones every second turn counts
RANKS, SHARDS = 2, 24
BATCH = 96
LARGE = 4 * BATCH  # for longer steps
GRADIENTS = 5_000_000
BASE = "float"
EXACT = {"reduction": "exact", "shards": RANKS}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    BASE: ("run", {}),
    "exact": ("run", EXACT),
    "float in 24 passes": ("run", {"accumulate": SHARDS // RANKS}),
    "exact, 24 shards": ("run", EXACT | {"shards": SHARDS}),
    "live": ("live", {}),
    "live, exact": ("live", EXACT),
    f"live, {LARGE} samples": ("live", {"global_batch": LARGE}),
    "reading ahead": ("ahead", {"prefetch": 2}),
}
"""Way → how it is started, and what is different in its configuration."""
WITHOUT = "{}: without"  # the turns of a way that go without: not live, not ahead, by float sums
ORDER = [name for way in WAYS for name in (WITHOUT.format(way), way)]


def words(how: str, more: Mapping[str, Any]) -> list[str]:
    """What a job of a way is started by."""
    keys = sets(**{
        "model": "digits", "global_batch": BATCH, "steps": 10**6, "eval_every": -1, "optimizer": "adamw", "lr": 0.001,
        "clip_norm": 1.0, "last_batch": "carry", "timeout_s": 0.0, "prefetch": 0, **more,
    })  # fmt: skip
    return ["live", "run", *keys] if how == "live" else ["run", *keys]


Turns = dict[str, list[float]]  # way → the step time of each of its turns, in seconds


def step_times(ways: Sequence[str]) -> tuple[Turns, dict[str, float]]:
    """Of new processes: what each turn came to; live way → cores used in the background."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {way: words(*WAYS[way]) for way in ways}
        with taking_turns(Path(folder), jobs, RANKS, TURN) as turns:
            two_each(turns, 1)  # to warm up
            begin, before = time.monotonic(), {way: turns.background_s(way) for way in turns.coordinators}
            for pair in range(PAIRS):
                two_each(turns, pair % 2)
            seconds = time.monotonic() - begin
            background = {way: round((turns.background_s(way) - used) / seconds, 6) for way, used in before.items()}
            told = {way: turns.ranks[way].events(0, "step") for way in ways}
    found: Turns = {}
    for way, steps in told.items():
        times = {turn: mean_step(steps, turn) for turn in range(2, 2 + 2 * PAIRS)}
        if not way.startswith(BASE):
            found[WITHOUT.format(way)] = [it for turn, it in times.items() if not is_whole(turn)]
        found[way] = [it for turn, it in times.items() if is_whole(turn)]
    return found, background


def two_each(turns: Jobs, odd: int) -> None:
    """Two turns of every job; each second time from the last to the first, so that a drift falls on all."""
    for way in list(turns.ranks)[:: 1 if odd else -1]:
        turns.turn(way)
        turns.turn(way)


def mean_step(steps: Sequence[Mapping[str, Any]], turn: int) -> float:
    """The mean step of one turn in seconds, from end to end: what a live job does only every few steps counts."""
    first, last = steps[turn * TURN + WARM_UP - 1], steps[(turn + 1) * TURN - 1]
    return round(float(last["t"] - first["t"]) / (TURN - WARM_UP), 6)


def conversion_s() -> float:
    """Seconds from a shard's gradients to their sums, and from the sums back, for `GRADIENTS` of them."""
    parameter = nn.Parameter(torch.zeros(GRADIENTS))
    bucket, gradients = Bucket([parameter], limit(24)), torch.randn(GRADIENTS)
    times = []
    for _ in range(5):
        parameter.grad = gradients.clone()
        begin = time.perf_counter()
        bucket.take(1.0)
        bucket.give(1.0)
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


def is_base(way: str) -> bool:
    """Whether others are compared with it."""
    return way in (BASE, *map(WITHOUT.format, WAYS))


def base_of(rounds: Mapping[str, Sequence[Sequence[float]]], way: str) -> str:
    """What a way is compared with: itself without, or else float."""
    without = WITHOUT.format(way)
    return without if without in rounds else BASE


def against(rounds: Mapping[str, Sequence[Sequence[float]]], way: str) -> Healthy:
    """How much longer a way's step is than its base's."""
    return over_rounds(ratios(rounds, way))


def ratios(rounds: Mapping[str, Sequence[Sequence[float]]], way: str) -> list[float]:
    """A way's step over its base's: of each round the median over neighbouring turns."""
    base = rounds[base_of(rounds, way)]
    mine = rounds[way][-len(base) :]  # earlier ones, from before it was compared with itself, have no base
    each = (zip(own, its, strict=True) for own, its in zip(mine, base, strict=True))
    return [median(own / other for own, other in turns) for turns in each]


def step_ms(rounds: Sequence[Sequence[float]]) -> float:
    """The median over all turns, in milliseconds."""
    return 1e3 * median(it for turns in rounds for it in turns)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help=f"default {OUT}")
    parser.add_argument("--rounds", type=int, default=10, help="default 10, of about 5 min each")
    parser.add_argument("--only", choices=("run", "live", "ahead"), help="jobs of one kind")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be at least 1")
    torch.set_num_threads(1)
    ways = [way for way, (how, _) in WAYS.items() if options.only in (None, how)]
    try:
        document = load(options.out, COMMAND)
    except KeptError as error:
        parser.error(str(error))
    document |= {"label": "real", "ranks": RANKS, "batch": BATCH, "gradients": GRADIENTS}
    document |= {"errors": errors(), "conversion_ms": round(1e3 * conversion_s(), 3)}
    rounds, background = document["cells"], document.setdefault("background_cores", {})
    for number in range(1, options.rounds + 1):
        turns, cores = step_times(ways)
        for way, times in turns.items():
            rounds.setdefault(way, []).append(times)
        for way, used in cores.items():
            background.setdefault(way, []).append(used)
        keep(options.out, document | origin())
        shown = ", ".join(f"{way} {step_ms([times]):.1f} ms" for way, times in turns.items())
        print(f"round {number} of {options.rounds}: {shown}", flush=True)
    for way, each in rounds.items():
        said = "" if is_base(way) else f", against {base_of(rounds, way)!r}: {against(rounds, way).words}"
        print(f"{way}: {step_ms(each):.1f} ms{said}")
    for way, shares in background.items():
        print(f"{way}: {100 * median(shares):.1f} % of a core in the background")
    print(f"conversion of {GRADIENTS:,} gradients, there and back: {document['conversion_ms']:.0f} ms")
    print("off the sum in double precision: " + ", ".join(f"{way} {it:.1e}" for way, it in document["errors"].items()))
    print(f"kept in {options.out}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("\nstopped; rounds that ended are kept") from None
