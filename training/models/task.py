"""What the loop asks of a workload, and what every workload needs. Called by `training.loop` and the tasks beside this.

A `Task` turns rows into a batch, a batch into a loss *summed* over its samples (the loop divides by the global batch),
and test rows into sums that add up over ranks and give the metrics.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from proving_ground.training.models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proving_ground.training.config import Config
    from proving_ground.training.data.order import Rows

ASKED = ("model", "optimizer", "batch", "loss", "sums", "metrics")
"""Methods without which a class is no task."""


class Batch(NamedTuple):
    """What a loader returned: inputs, targets, and the rows that it really read, which the ledger records."""

    inputs: Tensor
    targets: Tensor
    rows: Rows

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Batch:
        """The same on a device; from pinned memory Python need not wait until it is there."""
        inputs, targets = (it.to(device, non_blocking=non_blocking) for it in (self.inputs, self.targets))
        return Batch(inputs, targets, self.rows)

    def pinned(self) -> Batch:
        """The same in pinned memory, from which a GPU copies by itself."""
        return Batch(self.inputs.pin_memory(), self.targets.pin_memory(), self.rows)


@dataclass(frozen=True)
class Metric:
    """One figure of an evaluation; `more` has what else an `eval` event should carry (a baseline, a comparison)."""

    name: str
    value: float
    more: dict[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """What the loop asks of a workload."""

    rows: int
    """Training samples in an epoch."""
    test_rows: int
    """Samples of the test split; 0: there is nothing to judge."""
    learns: bool
    """False when parameters never change (paced compute)."""

    def model(self) -> nn.Module:
        """A new model; weights follow from torch's random state."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The update rule for it."""

    def batch(self, split: str, rows: Rows) -> Batch:
        """Inputs and targets of some rows."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss summed over the batch's samples."""

    def sums(self, model: nn.Module, batch: Batch) -> Tensor:
        """float64 sums over the batch's samples; what `metrics` needs, additive over batches and ranks."""

    def metrics(self, sums: list[float]) -> list[Metric]:
        """The figures that follow from the sums over the whole test split; the first is the one to go by."""


@runtime_checkable
class Blocks(Protocol):
    """A task whose network has blocks, so that their activations can be computed again instead of kept."""

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The blocks, each of which keeps its own activations."""


def make_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum or AdamW; the loop sets the learning rate before every step."""
    if config.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


class ModelError(ValueError):
    """A model of the user's own that is none, in one line. Exit status 2."""


def task_of(name: str) -> Callable[[Config], Task]:
    """The class of a model's task.

    Raises:
        ModelError: a module or class of the user's that cannot be had, or has not what the loop asks for.
    """
    module, _, member = (MODELS[name].task if name in MODELS else name).partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), member)
    except ImportError as error:
        raise ModelError(f"model = {name!r}: {missing(name, error)}") from None
    except AttributeError:
        raise ModelError(f"model = {name!r}: module {module} has no {member}") from None
    if lacking := [method for method in ASKED if not callable(getattr(found, method, None))]:
        raise ModelError(f"model = {name!r}: is no task: it lacks {', '.join(lacking)} (training/README.md)")
    return found  # type: ignore[no-any-return]


def missing(name: str, error: ImportError) -> str:
    """What has to be installed, or what is not found."""
    if name in MODELS:
        return f"needs {error.name}, which is not installed here"
    return f"cannot be imported: {error}"
