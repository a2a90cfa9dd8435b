"""What events cost the trainer, A/B in one process: `python -m tests.benchmarks.trainer_events [ROUNDS]`.

Training steps with events and timing on, off, and off again follow each other in an order drawn for every round, so
that a machine that drifts hurts all alike. Prints the differences in CPU and elapsed time with intervals (off against
off shows what the method cannot tell from nothing), and the cost of one event by itself.
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

from proving_ground.training import loop
from proving_ground.training.config import from_dict
from proving_ground.training.events import EventWriter, NoEvents
from proving_ground.training.exchange.communication import join
from proving_ground.training.timing import NoWatch, Watch

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


def rounds(job: loop.Job, writer: EventWriter, count: int) -> list[tuple[Block, Block, Block]]:
    """(with events, without, without again) of every round, run in an order drawn for it."""
    found = []
    for _ in range(count):
        blocks: dict[int, Block] = {}
        for place in random.sample(range(3), 3):
            blocks[place] = block(job, NoEvents() if place else writer)
        found.append((blocks[0], blocks[1], blocks[2]))
    return found


def report(name: str, on: list[float], off: list[float]) -> None:
    """The median relative difference with a 95 % bootstrap interval over the rounds."""
    differences = np.array(on) / np.array(off) - 1
    draws = np.random.default_rng(0).choice(differences, (2000, len(differences)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    step = f"{statistics.median(off) * 1e3:.2f} ms a step, {len(on)} rounds"
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


def main(count: int) -> None:
    """Measure and print."""
    config = from_dict({"model": "digits", "steps": 10**9})
    with tempfile.TemporaryDirectory() as folder, join(config) as world:
        torch.set_num_threads(1)
        writer = EventWriter(Path(folder) / "events.jsonl")
        job = loop.prepare(config, world, writer, lambda _line: None)
        block(job, writer)
        measured = rounds(job, writer, count)
        for place, name in ((0, "CPU time"), (1, "elapsed")):
            on, off, again = ([one[kind][place] for one in measured] for kind in range(3))
            report(f"{name}, events on against off", on, off)
            report(f"{name}, off against off (the method's own error)", again, off)
        alone = cost_of_an_event(writer)
        share = alone / statistics.median(off[1] for _, off, _ in measured)
        print(f"one event, alone: {alone * 1e6:.0f} µs = {share:.2%} of a step")
        del job  # before the process group goes


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
