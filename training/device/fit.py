"""What to do where memory does not suffice, tried before the ranks meet. Called by `training.loop`.

One rung after the other: smaller micro-batches at the same global batch, then activations computed again. A rung is a
changed configuration; it is tried by one real forward and backward beside a stand-in for all else that training holds.
A process that runs out of memory later ends with one line; whoever starts it again (the harness, a launcher) has it try
anew under the memory that there is then.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from proving_ground.training.device.precision import Precision
from proving_ground.training.device.resident import STATUS, field
from proving_ground.training.models.task import Blocks

if TYPE_CHECKING:
    from torch import nn

    from proving_ground.training.config import Config
    from proving_ground.training.models.task import Task

Build = Callable[["Config"], "nn.Module"]
Tell = Callable[[str, int], None]
"""Is told the rung, and how many samples go through the model at once."""

ROOM = 0.2
"""How much more than a training takes is tried: memory that is in pieces holds less."""
RESERVE = 48 * 2**20
"""Bytes for what is there only once the ranks have met: threads, connections, logs."""
PIECES = 3
"""Of a step that are tried: the heap has found its shape then."""
NO_ROOM = 3
"""Exit status of a trial that ran out of memory."""
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
WORDS = (
    "can't allocate memory",
    "out of memory",
    "std::bad_alloc",
    "bad allocation",
    "could not create a memory",
    "could not create a primitive",
)
"""How torch, CUDA, the C++ library and oneDNN say it."""


class OutOfMemoryError(RuntimeError):
    """Nothing that could be changed makes this training fit, in one line."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)


def fitted(config: Config, task: Task, build: Build, samples: int, device: torch.device, tell: Tell) -> Config:
    """The configuration, changed as little as makes `samples` of one rank's step fit; a change is told.

    Raises:
        OutOfMemoryError: nothing makes it fit.
    """
    import proving_ground.training.warm  # noqa: F401, PLC0415 - what a first step imports takes memory too

    if device.type == "cpu":
        stay_within_cgroup()
    blocks = isinstance(task, Blocks)
    rung, chosen = climb(config, samples, lambda it: tried(it, task, build, samples, device), blocks=blocks)
    if rung:
        tell(rung, chosen.micro_batch or samples)
    return chosen


def climb(config: Config, samples: int, fits: Callable[[Config], bool], *, blocks: bool) -> tuple[str, Config]:
    """The rung that is needed (empty: none), and its configuration, with the largest micro-batch that fits.

    `blocks`: the model has some whose activations can be computed again.

    Raises:
        OutOfMemoryError: none does.
    """
    if fits(config):
        return "", config
    if config.reduction == "float" and (micro := largest(samples, lambda it: fits(replace(config, micro_batch=it)))):
        return "micro_batch", replace(config, micro_batch=micro)
    if blocks and config.norm == "group" and not config.activation_checkpointing:
        again = replace(config, activation_checkpointing=True)
        if fits(again):
            return "activation_checkpointing", again
        if config.reduction == "float" and (micro := largest(samples, lambda it: fits(replace(again, micro_batch=it)))):
            return "activation_checkpointing", replace(again, micro_batch=micro)
    raise OutOfMemoryError(
        f"not enough memory for one piece of a step of model = {config.model!r}: "
        "more shards, a smaller model, or device = 'cpu' may help"
    )


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number below `most` that fits, within a tenth; 0 where not even one does."""
    low, high = 0, most
    while high - low > max(1, low // 10):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def tried(config: Config, task: Task, build: Build, samples: int, device: torch.device) -> bool:
    """Whether one forward and backward fit beside what a training holds.

    On a CPU in a child of its own: a trial that fails leaves a heap in pieces, and a control group may kill it.
    """

    def attempt() -> None:
        forward_and_backward(config, task, build(config), samples, device)

    return in_a_child(attempt) if device.type == "cpu" else here(attempt)


def here(attempt: Callable[[], None]) -> bool:
    """Whether it goes without running out of memory."""
    try:
        attempt()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return True


def in_a_child(attempt: Callable[[], None]) -> bool:
    """The same, in a process that is forked while no thread runs yet. What else goes wrong there the training meets."""
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status not in (NO_ROOM, -signal.SIGKILL)
    status = 0
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch's warnings come again in the training
        attempt()
    except BaseException as error:  # noqa: BLE001 - the child has nobody else to tell
        status = NO_ROOM if is_out_of_memory(error) else 1
    finally:
        os._exit(status)


def forward_and_backward(config: Config, task: Task, module: nn.Module, samples: int, device: torch.device) -> None:
    """Some pieces of a step, with what a training holds standing in."""
    held = sum(it.nbytes for it in module.parameters()) * copies(config)
    stand_in = torch.zeros(RESERVE + int(held * (1 + ROOM)), dtype=torch.uint8, device=device)
    piece = -(-config.global_batch // config.shards) if config.reduction == "exact" else config.micro_batch or samples
    piece += math.ceil(ROOM * piece)
    batch = task.batch("train", np.arange(piece) % task.rows).to(device)
    for _ in range(PIECES):
        with Precision(config, device).computing():
            loss = task.loss(module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
    del stand_in


def copies(config: Config) -> int:
    """How many times the parameters a training holds beside themselves and their gradients."""
    return moments(config) + beside(config)


def moments(config: Config) -> int:
    """Values that the optimizer keeps for each of the parameters'."""
    return 2 if config.optimizer == "adamw" else 1


def beside(config: Config) -> int:
    """How many times the parameters it holds for the exchange of gradients and for checkpoints."""
    sums = 3 if config.reduction == "exact" else 1  # integers of 8 bytes and what they are made from
    return sums + (1 + moments(config) if config.checkpoint_dir else 0)


def stay_within_cgroup() -> None:
    """Let this process' own limit be what its control group still allows: an error instead of a kill by the kernel."""
    free = free_in_cgroup()
    held = field("VmData", STATUS)
    if free is None or held is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = held + free
    if soft == resource.RLIM_INFINITY or wanted < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def free_in_cgroup() -> int | None:
    """Bytes that the tightest memory limit above this process leaves; None where there is no limit."""
    try:
        line = next(it for it in OWN_CGROUP.read_text().splitlines() if it.startswith("0::"))
    except (OSError, StopIteration):
        return None
    own = CGROUPS / line[3:].lstrip("/")
    limits = [limit for folder in (own, *own.parents) if (limit := free_of(folder)) is not None]
    return min(limits) if limits else None


def free_of(folder: Path) -> int | None:
    """What one control group leaves; pages of files can be dropped."""
    try:
        most = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        files = next(
            int(line.split()[1])
            for line in (folder / "memory.stat").read_text().splitlines()
            if line.startswith("file ")
        )
    except (OSError, ValueError, StopIteration):
        return None
    return None if most == "max" else max(0, int(most) - used + files)
