"""What a checkpoint costs: `python -m tests.benchmarks.checkpoint_speed [OUT] [--rounds N] [--at FOLDER]`.

Every round saves a state twice, by `checkpoints.saving.Saver` as the loop does it (block_s, durable_s), and loads it
in a fresh process, as a restarted rank does (load_s, verified). The first save of a process, whose memory is new, is
told apart. Prints the values and keeps them.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.checkpoints.saving import Saver
from proving_ground.training.checkpoints.stores import Folder
from proving_ground.training.config import from_dict
from proving_ground.training.loop import Job
from tests.validations.sitting import keep, origin

COMMAND = "python -m tests.benchmarks.checkpoint_speed"
OUT = Path("reports/measured/checkpoint-speed.json")
TARGETS = {"block_s": 0.060, "durable_s": 1.0, "load_s": 1.0}
"""95 % of the values must lie at or below."""
TENSORS = 60
LOAD = """
import sys, time, torch
from pathlib import Path
from proving_ground.training.checkpoints import checkpoint, stores
torch.set_num_threads(1)
begin = time.perf_counter()
assert checkpoint.load_newest(stores.Folder(Path(sys.argv[1])), print) is not None
print(time.perf_counter() - begin)
"""


class Told:
    """The events of a saver."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: str, **fields: Any) -> None:
        """Keep it."""
        self.events.append({"event": event, **fields})

    def close(self) -> None:
        """Nothing to close."""


def stand_in(megabytes: int) -> Job:
    """As much of a job as a saver looks at, alone in its world: a model with momentum, `megabytes` in all."""
    size = megabytes * 10**6 // 4 // 2 // TENSORS
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(size)) for _ in range(TENSORS)])
    optimizer = torch.optim.SGD(model, lr=0.1, momentum=0.9)
    for parameter in model:
        parameter.grad = torch.randn(size)
    optimizer.step()
    optimizer.zero_grad()
    world = SimpleNamespace(rank=0, size=1, gather=lambda value: [value])
    job = SimpleNamespace(
        world=world, local=None,
        model=SimpleNamespace(module=model), optimizer=optimizer, step=0, steps=10**9, epoch=0, best=None,
        metrics={}, due=lambda every: every > 0,
    )  # fmt: skip
    return cast("Job", job)


def save_twice(megabytes: int, folder: Path) -> list[dict[str, Any]]:
    """The events of the first checkpoint of a process and of the second, some steps later."""
    told = Told()
    config = from_dict({"checkpoint_dir": str(folder), "checkpoint_every": 1, "keep_checkpoints": 1})
    job = stand_in(megabytes)
    job.config = config
    generation = checkpoint.claim_generation(Folder(folder))
    with Saver(config, told, generation, lambda _phase, _step: None) as saver:  # type: ignore[arg-type]
        for job.step in (1, 2):
            saver.save(job, stopped=False)
            time.sleep(1.5)
    return told.events


def measure(megabytes: int, folder: Path) -> dict[str, float]:
    """One round."""
    first, second = save_twice(megabytes, folder)
    loaded = subprocess.run([sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, check=True)
    return {
        "megabytes": round(second["bytes"] / 1e6, 1),
        "first_block_s": round(first["block_s"], 4),
        "block_s": round(second["block_s"], 4),
        "durable_s": round(second["durable_s"], 4),
        "load_s": round(float(loaded.stdout), 4),
    }


def verdict(rounds: list[dict[str, float]]) -> bool:
    """Print the figures beside the targets; whether all are reached."""
    reached = True
    for name, most in TARGETS.items():
        values = [one[name] for one in rounds]
        p95 = float(np.percentile(values, 95))
        reached &= p95 <= most
        median = np.median(values)
        print(f"{name:<10} median {median * 1e3:5.0f} ms, 95 % {p95 * 1e3:5.0f} ms, asked {most * 1e3:.0f} ms")
    return reached


def main() -> int:
    """Measure, print, keep; exit status 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=OUT, metavar="OUT")
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument("--megabytes", type=int, default=500, metavar="N", help="of state (default 500)")
    parser.add_argument("--at", type=Path, metavar="FOLDER", help="on whose disk (default: the temporary folder's)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = {"command": COMMAND, "label": "real", "torch": torch.__version__, "python": platform.python_version()}
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.at) as folder:
            rounds.append(measure(options.megabytes, Path(folder)))
        print(rounds[-1], flush=True)
        keep(options.out, about | {"rounds": rounds} | origin())
    return 0 if verdict(rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
