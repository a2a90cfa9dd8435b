"""A task with blocks that needs no package beside torch: layers of odd sizes on random points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from proving_ground.training.models.task import Batch, Metric, make_optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proving_ground.training.config import Config
    from proving_ground.training.data.order import Rows

WIDTH, LAYERS = 37, 3
"""Rows that no number of ranks divides."""


class Blocks:
    """Say which of five kinds a point is."""

    learns = True
    rows, test_rows = 150, 31
    width, layers = WIDTH, LAYERS

    def __init__(self, config: Config) -> None:
        self.config = config
        dice = torch.Generator().manual_seed(7)
        self._points = torch.randn(self.rows + self.test_rows, 6, generator=dice)
        self._kinds = self._points @ torch.randn(6, 5, generator=dice)

    def model(self) -> nn.Module:
        """Blocks of a layer and a norm between two layers; one parameter has fewer rows than there may be ranks."""
        inner = [
            nn.Sequential(nn.Linear(self.width, self.width), nn.LayerNorm(self.width), nn.ReLU())
            for _ in range(self.layers)
        ]
        return nn.Sequential(nn.Linear(6, self.width), *inner, nn.Linear(self.width, 5), nn.PReLU())

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Those between."""
        return [part for part in model.children() if isinstance(part, nn.Sequential)]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """As configured."""
        return make_optimizer(self.config, model)

    def batch(self, split: str, rows: Rows) -> Batch:
        """Points and their kinds; the test's come after the training's."""
        where = torch.from_numpy(rows) + (self.rows if split == "test" else 0)
        return Batch(self._points[where], self._kinds[where].argmax(dim=1), rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy."""
        return nn.functional.cross_entropy(model(batch.inputs).float(), batch.targets, reduction="sum")

    def sums(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy and points."""
        return torch.stack([self.loss(model, batch), torch.tensor(float(len(batch.rows)))]).double()

    def metrics(self, sums: list[float]) -> list[Metric]:
        """The mean cross entropy."""
        return [Metric("loss", sums[0] / sums[1])]


class Large(Blocks):
    """16 MiB a block, for trials of memory."""

    width, layers = 2048, 6


class Wide(Blocks):
    """Small layers and samples enough that their activations are what is large."""

    rows = 16384
    width, layers = 256, 16


class Larger(Large):
    """As many again."""

    layers = 12


class Tied(Blocks):
    """Two blocks share a weight."""

    def model(self) -> nn.Module:
        """As it is, but for that."""
        model = super().model()
        first, second, *_ = self.blocks(model)
        second.get_submodule("0").weight = first.get_submodule("0").weight
        return model


class Scalar(Blocks):
    """A parameter has no rows to be cut."""

    def model(self) -> nn.Module:
        """As it is, and that parameter."""
        model = super().model()
        model.register_parameter("temperature", nn.Parameter(torch.tensor(1.0)))
        return model


class Adamed(Blocks):
    """An optimizer of its own, whatever is configured."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW with the largest of its averages."""
        return torch.optim.AdamW(model.parameters(), lr=self.config.lr, amsgrad=True)
