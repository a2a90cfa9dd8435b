"""The tasks with real computation: what is read, what is computed, what is judged. Called by `training.loop`.

A `Task` turns rows into a batch, a batch into a loss *summed* over its samples (the loop divides by the global batch),
and test rows into sums that add up over ranks and give the metrics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from training.config import Config, ConfigError
from training.data import Column
from training.shards import opened

if TYPE_CHECKING:
    from training.order import Rows


class Batch(NamedTuple):
    """What a loader returned: inputs, targets, and the rows that it really read, which the ledger records."""

    inputs: Tensor
    targets: Tensor
    rows: Rows

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(self.inputs.to(device), self.targets.to(device), self.rows)


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
        """The figures that follow from the sums over the whole test split."""


def make_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum or AdamW; the loop sets the learning rate before every step."""
    if config.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


class Digits:
    """Handwritten digits and a small convolutional network: much arithmetic for few parameters (about 30,000)."""

    learns = True

    def __init__(self, config: Config) -> None:
        if config.sync_batchnorm and not torch.cuda.is_available():
            raise ConfigError("sync_batchnorm = true needs CUDA: torch has no SyncBatchNorm for CPUs")
        self.config = config
        data = opened(config, "digits")
        data.expect(image=("uint8", (8, 8)), label=("int64", ()))
        self._images = {split: data.column(split, "image") for split in ("train", "test")}
        self._labels = {split: data.column(split, "label") for split in ("train", "test")}
        self.rows, self.test_rows = len(self._labels["train"]), len(self._labels["test"])

    def model(self) -> nn.Module:
        """Three 3×3 convolutions on the image at twice its size, then one linear layer."""
        width, layers = (
            32,
            [nn.Upsample(scale_factor=2), *self._block(1, 32), *self._block(32, 32), *self._block(32, 32)],
        )
        head = [nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Dropout(self.config.dropout), nn.Linear(width * 16, 10)]
        model = nn.Sequential(*layers, *head)
        convert = nn.SyncBatchNorm.convert_sync_batchnorm
        return convert(model) if self.config.sync_batchnorm else model  # type: ignore[no-untyped-call]

    def _block(self, inputs: int, outputs: int) -> list[nn.Module]:
        norm = nn.BatchNorm2d(outputs) if self.config.norm == "batch" else nn.GroupNorm(4, outputs)
        return [nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU()]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """As configured."""
        return make_optimizer(self.config, model)

    def batch(self, split: str, rows: Rows) -> Batch:
        """Images (n, 1, 8, 8) from 0 to 1 and labels (n,)."""
        images = torch.from_numpy(self._images[split].rows(rows)).unsqueeze(1).float() / 16
        return Batch(images, torch.from_numpy(self._labels[split].rows(rows)), rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy."""
        images, labels, _ = batch
        return nn.functional.cross_entropy(model(images), labels, reduction="sum")

    def sums(self, model: nn.Module, batch: Batch) -> Tensor:
        """Right answers and answers."""
        images, labels, _ = batch
        right = (model(images).argmax(dim=1) == labels).sum()
        return torch.stack([right, torch.tensor(len(labels), device=right.device)]).double()

    def metrics(self, sums: list[float]) -> list[Metric]:
        """Accuracy from 0 to 1."""
        right, count = sums
        return [Metric("accuracy", right / count)]


class Stocks:
    """The next day's log return of an index from the last WINDOW days, judged against "tomorrow's price is today's"."""

    learns = True
    WINDOW = 20
    """Trading days in, about a month."""

    def __init__(self, config: Config) -> None:
        self.config = config
        data = opened(config, "sp500")
        data.expect(close=("float64", ()))
        self._close: dict[str, Column] = {split: data.column(split, "close") for split in ("train", "test")}
        self.rows, self.test_rows = (len(self._close[split]) - self.WINDOW - 1 for split in ("train", "test"))
        if min(self.rows, self.test_rows) < 1:
            raise ConfigError(f"{data.path}: needs more than {self.WINDOW + 1} prices in each split")

    def model(self) -> nn.Module:
        """Two hidden layers."""
        return nn.Sequential(nn.Linear(self.WINDOW, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """As configured."""
        return make_optimizer(self.config, model)

    def batch(self, split: str, rows: Rows) -> Batch:
        """The window's returns over their own volatility (n, WINDOW); the next return and that volatility (n, 2)."""
        days = rows[:, None] + np.arange(self.WINDOW + 2)
        prices = self._close[split].rows(days.ravel()).reshape(days.shape)
        returns = np.diff(np.log(prices), axis=1)
        window, following = returns[:, :-1], returns[:, -1]
        volatility = window.std(axis=1) + 1e-8
        inputs, targets = window / volatility[:, None], np.stack([following, volatility], axis=1)
        return Batch(torch.from_numpy(inputs).float(), torch.from_numpy(targets), rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Squared error in units of the window's volatility."""
        inputs, targets, _ = batch
        wanted = (targets[:, 0] / targets[:, 1]).float()
        return nn.functional.mse_loss(model(inputs).squeeze(1), wanted, reduction="sum")

    def sums(self, model: nn.Module, batch: Batch) -> Tensor:
        """Count, squared errors of model and random walk, and the sum and square of their differences."""
        inputs, targets, _ = batch
        forecast = model(inputs).squeeze(1).double() * targets[:, 1]
        ours, walk = (forecast - targets[:, 0]) ** 2, targets[:, 0] ** 2
        difference = ours - walk
        return torch.stack([torch.ones_like(ours), ours, walk, difference, difference**2]).sum(dim=1)

    def metrics(self, sums: list[float]) -> list[Metric]:
        """Root mean squared error of the daily log return, beside the random walk's, and whether they differ.

        The comparison is Diebold and Mariano's (1995) for one-step forecasts: the mean difference of squared errors
        over its standard error; beyond ±1.96 it is taken for real.
        """
        count, ours, walk, difference, squares = sums
        mean = difference / count
        deviation = math.sqrt(max(squares / count - mean**2, 0.0) / count)
        statistic = mean / deviation if deviation else 0.0
        verdict = "cannot tell" if abs(statistic) < 1.96 else "no" if statistic > 0 else "yes"
        more = {"baseline": math.sqrt(walk / count), "baseline_name": "random walk", "beats_baseline": verdict}
        return [Metric("rmse_log_return", math.sqrt(ours / count), more | {"statistic": round(statistic, 3)})]
