"""Mixed precision: what forward computes in, and the scale of an FP16 loss. Called by `training.loop`.

Weights, gradients and the optimizer stay in FP32; forward and loss run under autocast. FP16 loses gradients below 6e-8,
so the loss is multiplied by a scale, a power of two, and gradients are divided by it after they were summed over the
ranks. All ranks hold the same sums, so all find the same overflow: they skip the same step and halve the same scale.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from proving_ground.training.config import Config

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LEAST_SCALE = 1.0
"""A loss that overflows at this scale overflows without any: FP16 cannot train it."""


@contextlib.contextmanager
def repeatable(config: Config) -> Iterator[None]:
    """Meanwhile a GPU computes the same bits again, where somebody compares them; by itself it adds up in any order.

    Exact sums need it, and fingerprints are there to be compared, unless `deterministic` is off. torch refuses an
    operation without a deterministic implementation. A CPU of one thread repeats itself anyway.
    """
    compared = config.reduction == "exact" or (config.fingerprint_every and config.deterministic)
    if not compared or config.device == "cpu" or not torch.cuda.is_available():
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch asks for then
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property of it
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=before)


class Precision:
    """What one rank computes in, and its loss scale: torch's `GradScaler`, switched off but for FP16."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self._dtype, self._device = DTYPES.get(config.precision), device.type
        self.scales = config.precision == "fp16"
        self._scaler = torch.amp.GradScaler(
            device.type, init_scale=config.loss_scale, growth_interval=config.loss_scale_steps, enabled=self.scales
        )

    def computing(self) -> AbstractContextManager[Any]:
        """Around forward and loss."""
        return torch.autocast(self._device, self._dtype) if self._dtype else contextlib.nullcontext()

    def scaled(self, loss: Tensor) -> Tensor:
        """What backward begins with."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def scale(self) -> float:
        """What gradients are multiplied by until `unscale`; 1 but for FP16."""
        return float(self._scaler.get_scale())

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the summed gradients what they mean: before they are clipped."""
        self._scaler.unscale_(optimizer)

    def update(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Take the optimizer's step unless a gradient has overflowed, and adapt the scale; what is told of that.

        Raises:
            RuntimeError: gradients overflow at every scale.
        """
        self._scaler.step(optimizer)
        if not self.scales:
            return {}
        before = self.scale()
        self._scaler.update()
        skipped = self.scale() < before
        if skipped and before <= LEAST_SCALE:
            raise RuntimeError(f"FP16 overflows at a loss scale of {before:g}: use precision = 'bf16', or a smaller lr")
        return {"loss_scale": before, "skipped": skipped}

    def state(self) -> dict[str, Any]:
        """The scale and how long it has held: part of a checkpoint, of what a joiner gets, and of a fingerprint."""
        return dict(self._scaler.state_dict())

    def put(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        self._scaler.load_state_dict(state)
