"""What events cost the trainer, A/B in one process: `python -m tests.benchmarks.trainer_events [PAIRS]`.

Training steps with events and timing on and off alternate, in pairs whose order is drawn, so that a machine that drifts
hurts both alike. Prints the difference in CPU and elapsed time with intervals, and the cost of one event by itself.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from training import loop
from training.communication import join
from training.config import from_dict
from training.events import EventWriter, NoEvents
from training.timing import NoWatch, Watch

STEPS = 2
"""Steps of a block: the fewer, the more alike the machine is for both of a pair."""

Block = tuple[float, float]


def block(job: loop.Job, events: EventWriter | NoEvents) -> Block:
    """CPU seconds and elapsed seconds of one step, mean over a block, as the loop does it."""
    job.events = events
    job.watch = NoWatch() if isinstance(events, NoEvents) else Watch(torch.device("cpu"))
    cpu, begin = time.process_time(), time.perf_counter()
    for _ in range(STEPS):
        loop.step(job, asked_to_stop=False)
    return (time.process_time() - cpu) / STEPS, (time.perf_counter() - begin) / STEPS


def pairs(job: loop.Job, writer: EventWriter, blocks: int) -> list[tuple[Block, Block]]:
    """(with events, without) of every pair of blocks."""
    found = []
    for _ in range(blocks):
        if random.random() < 0.5:  # noqa: S311 - not for secrets
            on = block(job, writer)
            found.append((on, block(job, NoEvents())))
        else:
            off = block(job, NoEvents())
            found.append((block(job, writer), off))
    return found


def report(name: str, on: list[float], off: list[float]) -> None:
    """The median relative difference with a 95 % bootstrap interval over the pairs."""
    differences = np.array(on) / np.array(off) - 1
    draws = np.random.default_rng(0).choice(differences, (2000, len(differences)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    step = f"{statistics.median(off) * 1e3:.2f} ms a step, {len(on)} pairs"
    print(f"{name}: {np.median(differences):+.2%} (95 % CI {low:+.2%} to {high:+.2%}) of {step}")


def cost_of_an_event(writer: EventWriter, count: int = 2000) -> float:
    """Seconds for the timing of one step and its event, alone."""
    watch = Watch(torch.device("cpu"))
    begin = time.perf_counter()
    for number in range(count):
        watch.begin()
        for part in ("data", "data", "forward", "backward", "comm", "optimizer", "checkpoint"):
            with watch.part(part):
                pass
        writer.emit(
            "step", step=number, samples=64, global_samples=64, epoch=0, loss=0.123456, lr=0.05, **watch.finish()
        )
    return (time.perf_counter() - begin) / count


def main(blocks: int) -> None:
    """Measure and print."""
    config = from_dict({"model": "digits", "steps": 10**9})
    with tempfile.TemporaryDirectory() as folder, join(config) as world:
        torch.set_num_threads(1)
        writer = EventWriter(Path(folder) / "events.jsonl")
        job = loop.prepare(config, world, writer, lambda _line: None)
        block(job, writer)
        measured = pairs(job, writer, blocks)
        for place, name in ((0, "CPU time"), (1, "elapsed")):
            report(name, [on[place] for on, _ in measured], [off[place] for _, off in measured])
        alone = cost_of_an_event(writer)
        share = alone / statistics.median(off[1] for _, off in measured)
        print(f"one event, alone: {alone * 1e6:.0f} µs = {share:.2%} of a step")
        del job  # before the process group goes


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
