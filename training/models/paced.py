"""Paced compute: a model that takes a recorded profile's time, with real gradients to exchange. For `training.loop`.

Forward and backward sleep instead of computing, so that many emulated nodes fit on few cores; what lies between the
ranks is real: DDP, its buckets of the model's true shapes, the all-reduce of every byte, and its overlap with backward.
Time is proportional to a rank's samples: a profile at another batch, or strong scaling, is an assumption.
Gradients are zero but for their first and last element, which hold a number that differs by rank and step: after the
all-reduce they must hold the sum over ranks, or training stops.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from proving_ground.training.config import EVERY_STEP
from proving_ground.training.exchange.communication import identity
from proving_ground.training.measuring.profiling import Profile, find, read
from proving_ground.training.models.task import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from proving_ground.training.config import Config
    from proving_ground.training.data.order import Rows
    from proving_ground.training.models.task import Metric

SHORTEST_SLEEP_S = 0.002
"""Shorter waits are left to the next one: each sleep ends some 50 µs late, and many short ones would add up."""

IMAGENET_ROWS = 1_281_167
"""Training images of ImageNet-1k: what an epoch means for its models."""


class Pacer:
    """Waits for moments of one step; all are offsets from its beginning, so lateness never adds up."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.begun = 0.0

    def begin(self) -> None:
        """The paced time starts now."""
        self.begun = time.monotonic()

    def wait(self, offset_s: float, *, exact: bool = False) -> None:
        """Sleep until `offset_s` seconds of the profile have passed; if that is near, only when it must be `exact`."""
        left = self.begun + offset_s * self.scale - time.monotonic()
        if left > (0 if exact else SHORTEST_SLEEP_S):
            time.sleep(left)


class PacedModel(nn.Module):
    """Parameters of the profile's shapes, and a chain through them whose backward gives gradients at its pace."""

    def __init__(self, profile: Profile, pace: float, rank: int) -> None:
        super().__init__()
        self.profile, self.pace, self.rank = profile, pace, rank
        self.pacer = Pacer(pace)
        self.turn = 0  # changes every step, so that an old sum does not pass for a new one
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(entry.shape)) for entry in reversed(profile.backward))

    def forward(self, samples: Tensor) -> Tensor:
        """A scalar that depends on every parameter; takes forward's time for this number of samples."""
        self.pacer.scale = self.pace * len(samples) / self.profile.batch
        self.pacer.begin()
        value = torch.zeros((), requires_grad=True)
        gradients = list(reversed(self.profile.backward))  # the chain's last link is the first in backward
        for number, (weight, entry) in enumerate(zip(self.weights, gradients, strict=True)):
            offset = self.profile.forward_s + entry.ready_s
            value = link(value, weight, self._ready(weight, offset, exact=number == 0))
        self.pacer.wait(self.profile.forward_s, exact=True)
        return value

    def _ready(self, weight: Tensor, offset_s: float, *, exact: bool) -> Callable[[], Tensor | None]:
        def gradient() -> Tensor | None:
            """Wait for the gradient's moment; after the first step it is marked where it lies, in DDP's bucket."""
            self.pacer.wait(offset_s, exact=exact)
            first = weight.grad is None
            values = torch.zeros_like(weight) if weight.grad is None else weight.grad
            values.view(-1)[0] = values.view(-1)[-1] = self.rank + 1 + self.turn
            return values if first else None

        return gradient


class _Link(torch.autograd.Function):
    """Passes a scalar on; its backward asks for one parameter's gradient. None leaves what is there untouched."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, gradient: Callable[[], Tensor | None]) -> Tensor:  # noqa: ANN401, ARG004
        ctx.gradient = gradient
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ANN401 - autograd's own signature
        return grads[0], ctx.gradient(), None


def link(value: Tensor, weight: Tensor, gradient: Callable[[], Tensor | None]) -> Tensor:
    """One link of the chain, typed."""
    return _Link.apply(value, weight, gradient)  # type: ignore[no-any-return, no-untyped-call]


class PacedOptimizer(torch.optim.Optimizer):
    """Takes the optimizer's time and checks meanwhile that every gradient is the sum over ranks; changes no weight."""

    def __init__(self, model: PacedModel, ranks: range) -> None:
        super().__init__(model.parameters(), {"lr": 0.0})
        self._model, self._ranks = model, ranks

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401, ARG002 - torch's signature
        """Wait for the optimizer's time from now on."""
        model, pacer = self._model, Pacer(self._model.pace)
        pacer.begin()
        expected = sum(rank + 1 + model.turn for rank in self._ranks)
        for weight, entry in zip(model.weights, reversed(model.profile.backward), strict=True):
            ends = None if weight.grad is None else weight.grad.view(-1)[[0, -1]].tolist()
            if ends != [expected, expected]:
                raise RuntimeError(
                    f"all-reduce of {entry.name} gave {ends}, the sum over {len(self._ranks)} ranks is {expected}"
                )
        model.turn = (model.turn + 1) % 7  # small numbers: exact in FP16 too
        pacer.wait(model.profile.optimizer_s, exact=True)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Keep gradients where they are: the next step marks them again."""


class Paced:
    """The task: batches are empty, there is nothing to judge, weights stay as they are."""

    learns = False
    rows = IMAGENET_ROWS
    test_rows = 0

    def __init__(self, config: Config) -> None:
        self._profile, self._pace = read(find(config.profile)), config.pace
        self._rank, self._size = identity()
        alone = config.updates != EVERY_STEP
        self._summed = range(self._rank, self._rank + 1) if alone else range(self._size)
        self._loading_s = config.store_s * self._size  # one store serves all ranks in turn
        self._store = threading.Lock()  # and a rank's own threads too

    def model(self) -> PacedModel:
        """Parameters in the profile's shapes."""
        return PacedModel(self._profile, self._pace, self._rank)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The paced one."""
        assert isinstance(model, PacedModel)  # noqa: S101 - it is the one made above
        return PacedOptimizer(model, self._summed)

    def batch(self, split: str, rows: Rows) -> Batch:  # noqa: ARG002 - a paced batch is its number of samples
        """As many samples, without content; takes as long as the store is busy with the batches of all ranks."""
        with self._store:
            time.sleep(self._loading_s)
        return Batch(torch.empty(len(rows), 0), torch.empty(len(rows), 0), rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Zero, after forward's time; what depends on it takes backward's."""
        value: Tensor = model(batch.inputs)
        return value

    def sums(self, model: nn.Module, batch: Batch) -> Tensor:
        """Nothing is judged."""
        raise NotImplementedError

    def metrics(self, sums: list[float]) -> list[Metric]:
        """Nothing is judged."""
        raise NotImplementedError
