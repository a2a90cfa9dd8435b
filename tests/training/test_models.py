"""The workloads judge themselves rightly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proving_ground.training.config import ConfigError, from_dict
from proving_ground.training.loop import learning_rate
from proving_ground.training.models.digits import Digits, Windows
from proving_ground.training.models.stocks import Stocks


class Oracle(torch.nn.Module):
    """Forecasts a fixed multiple of what really happens next, in units of volatility."""

    def __init__(self, targets: torch.Tensor, factor: float) -> None:
        super().__init__()
        self.forecast = factor * targets[:, 0] / targets[:, 1]

    def forward(self, _inputs: torch.Tensor) -> torch.Tensor:
        return self.forecast.unsqueeze(1)


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "yes"), (-0.5, "no"), (0.0, "cannot tell")])
def test_a_forecast_is_compared_with_the_random_walk(factor: float, verdict: str) -> None:
    task = Stocks(from_dict({"model": "stocks"}))
    batch = task.batch("test", np.arange(task.test_rows))
    metric = task.metrics(task.sums(Oracle(batch[1], factor), batch).tolist())[0]
    returns = batch[1][:, 0]
    assert metric.more["beats_baseline"] == verdict
    assert metric.more["baseline"] == pytest.approx(float(returns.square().mean().sqrt()))
    assert metric.value == pytest.approx(abs(1 - factor) * metric.more["baseline"])


def test_noise_does_not_pass_for_a_forecast() -> None:
    """A forecast that is as good as the walk up to chance is not called better or worse."""
    task = Stocks(from_dict({"model": "stocks"}))
    batch = task.batch("test", np.arange(task.test_rows))
    noise = Oracle(batch.targets, 0.0)
    noise.forecast = 0.001 * torch.randn(len(batch.inputs), generator=torch.Generator().manual_seed(0))
    assert task.metrics(task.sums(noise, batch).tolist())[0].more["beats_baseline"] == "cannot tell"


def test_a_window_holds_no_future() -> None:
    """Inputs are returns up to the day before the target's, in order: the next row's window ends with this target."""
    task = Stocks(from_dict({"model": "stocks"}))
    inputs, targets, _ = task.batch("train", np.arange(10))
    scaled = inputs.double() * targets[:, 1:]
    assert scaled[1:, -1].tolist() == pytest.approx(targets[:-1, 0].tolist(), abs=1e-8)


def test_digits_are_counted() -> None:
    task = Digits(from_dict({}))
    batch = task.batch("test", np.arange(task.test_rows))
    images, labels, _ = batch
    assert images.shape == (360, 1, 8, 8)
    assert images.max() == 1.0
    always_three = torch.nn.functional.one_hot(torch.full((360,), 3), 10).float()
    sums = task.sums(lambda _images: always_three, batch)  # type: ignore[arg-type]
    assert task.metrics(sums.tolist())[0].value == pytest.approx(float((labels == 3).double().mean()))


def test_synchronised_batch_statistics_are_refused_without_cuda() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    with pytest.raises(ConfigError, match="needs CUDA"):
        Digits(from_dict({"norm": "batch", "sync_batchnorm": True}))


@pytest.mark.parametrize(("rule", "peak"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_the_learning_rate_is_scaled_warmed_up_and_lowered(rule: str, peak: float) -> None:
    keys = {"lr": 0.1, "lr_scaling": rule, "base_batch": 64, "global_batch": 256, "lr_warmup_steps": 4}
    config = from_dict(keys | {"lr_schedule": "cosine"})
    rates = [learning_rate(config, step, 24) for step in range(25)]
    assert rates[:4] == pytest.approx([peak / 4, peak / 2, peak * 3 / 4, peak])
    assert rates[14] == pytest.approx(peak / 2)
    assert rates[24] == pytest.approx(0, abs=1e-9)
    assert rates[4:] == sorted(rates[4:], reverse=True)


@pytest.mark.parametrize("side", [4, 16, 18, 7])
def test_windows_are_torch_s_adaptive_ones_with_ties_and_all(side: int) -> None:
    """Their gradients too: what is trained stayed the same when a GPU was to repeat it."""
    torch.manual_seed(0)
    images = torch.randn(3, 2, side, side).round(decimals=1).requires_grad_()
    same = images.detach().clone().requires_grad_()
    ours, torchs = Windows(4)(images), torch.nn.AdaptiveMaxPool2d(4)(same)
    given = torch.randn_like(ours)
    for values in (ours, torchs):
        values.backward(given)
    assert images.grad is not None
    assert same.grad is not None
    assert torch.equal(ours, torchs)
    assert torch.equal(images.grad, same.grad)
