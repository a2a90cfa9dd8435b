"""Measures the peak memory of real training steps by model and batch: `pg training memory`.

On a CPU each measurement runs in a process of its own, and what that had before the model is taken off its peak.
On a GPU it is what the allocator handed out at most (`torch.cuda.max_memory_allocated`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from proving_ground.training.device.resident import peak_bytes
from proving_ground.training.exchange.communication import pick_device
from proving_ground.training.measuring.profiling import MODELS

if TYPE_CHECKING:
    from proving_ground.training.events import EventWriter, NoEvents
    from proving_ground.training.measuring.programs import Memory

CLASSES = 1000


def run(settings: Memory, events: EventWriter | NoEvents, tell: Callable[[str], None]) -> None:
    """Train some steps of every model at every batch; what does not fit is told and passed over.

    Raises:
        ConfigError: a device that is not there.
    """
    device = pick_device(settings.device)
    events.emit("ready", device=str(device))
    measure = on_gpu if device.type == "cuda" else in_a_process
    for number in range(1, settings.rounds + 1):
        for model in settings.models:
            for batch in settings.batches:
                what = f"{model}, batch {batch}"
                try:
                    value = measure(model, batch, settings.steps, device) / 1e6
                except MemoryError:
                    events.emit("error", message=f"{what}: out of memory", fatal=False)
                    tell(f"{what}: out of memory")
                    continue
                where = {"model": model, "batch": batch, "device": device.type}
                events.emit("measure", step=number, name="memory_peak", unit="MB", value=value, where=where)
                tell(f"{what}: {value:.0f} MB")
        events.emit("step", step=number, samples=1)
    events.emit("end", step=settings.rounds, reason="done")


def train(name: str, batch: int, steps: int, device: torch.device) -> None:
    """Some steps of a torchvision model on random images, as a training would do them."""
    from torchvision.models import get_model  # noqa: PLC0415 - slow to import

    torch.set_num_threads(1)
    model = get_model(name, weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, MODELS[name], MODELS[name], device=device)
    labels = torch.randint(0, CLASSES, (batch,), device=device)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def on_gpu(name: str, batch: int, steps: int, device: torch.device) -> int:
    """Peak bytes of the allocator.

    Raises:
        MemoryError: it does not fit.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    try:
        train(name, batch, steps, device)
    except torch.cuda.OutOfMemoryError as error:
        raise MemoryError(str(error)) from None
    return int(torch.cuda.max_memory_allocated(device))


def in_a_process(name: str, batch: int, steps: int, device: torch.device) -> int:
    """Peak bytes that training adds to a process.

    Raises:
        MemoryError: the process was killed, as the system does when there is no memory left.
        RuntimeError: it failed otherwise.
    """
    program = [sys.executable, "-m", "proving_ground.training.measuring.memory"]
    command = [*program, name, str(batch), str(steps), str(device)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGKILL:
        raise MemoryError(f"{name}, batch {batch}: the process was killed")
    if done.returncode:
        raise RuntimeError(f"{name}, batch {batch}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return int(done.stdout)


def report(name: str, batch: str, steps: str, device: str) -> None:
    """In the process: measure, and print it."""
    before = peak_bytes()
    train(name, int(batch), int(steps), torch.device(device))
    print(peak_bytes() - before)


if __name__ == "__main__":
    report(*sys.argv[1:])
