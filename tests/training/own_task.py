"""A task as a user would write it: a line through points. Trained by `test_networks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from proving_ground.training.config import Config, ConfigError
from proving_ground.training.models.task import Batch, Metric

if TYPE_CHECKING:
    from proving_ground.training.data.order import Rows


class Line:
    """y = 2 x + 1."""

    learns = True
    rows, test_rows = 64, 16

    def __init__(self, config: Config) -> None:
        if config.norm == "batch":
            raise ConfigError("model Line has no normalisation: leave norm alone")
        self.config = config

    def model(self) -> nn.Module:
        """Slope and offset."""
        return nn.Linear(1, 1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(model.parameters(), lr=self.config.lr, momentum=0.9)

    def batch(self, split: str, rows: Rows) -> Batch:
        """Points; the test's lie between those of the training."""
        where = (torch.from_numpy(rows).float() + (split == "test") / 2).unsqueeze(1) / 32 - 1
        return Batch(where, 2 * where + 1, rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Squared error."""
        return nn.functional.mse_loss(model(batch.inputs), batch.targets, reduction="sum")

    def sums(self, model: nn.Module, batch: Batch) -> Tensor:
        """Squared errors and their number."""
        return torch.stack([self.loss(model, batch), torch.tensor(float(len(batch.rows)))]).double()

    def metrics(self, sums: list[float]) -> list[Metric]:
        """The mean squared error."""
        return [Metric("loss", sums[0] / sums[1])]
