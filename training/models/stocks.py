"""A forecast of tomorrow's return from the last month of prices. One of `training.models`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from proving_ground.training.config import Config, ConfigError
from proving_ground.training.data.mapped import Column
from proving_ground.training.data.shards import opened
from proving_ground.training.models.task import Batch, Metric, make_optimizer

if TYPE_CHECKING:
    from proving_ground.training.data.order import Rows


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
