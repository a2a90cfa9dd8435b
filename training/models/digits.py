"""Handwritten digits: the small network that most suites train. One of `training.models`."""

from __future__ import annotations

from torch import nn

from training.models.images import Images


class Digits(Images):
    """Handwritten digits and a small convolutional network: much arithmetic for few parameters (about 30,000)."""

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
