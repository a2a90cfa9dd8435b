"""Handwritten digits: the small network that most suites train. One of `training.models`."""

from __future__ import annotations

from torch import Tensor, nn

from proving_ground.training.models.images import Images


class Windows(nn.Module):
    """The largest value of each of n × n windows: AdaptiveMaxPool2d, whose backward has no repeatable way on a GPU."""

    def __init__(self, windows: int) -> None:
        super().__init__()
        self.windows = windows

    def forward(self, images: Tensor) -> Tensor:
        """The largest values (samples, channels, n, n)."""
        size = tuple(images.shape[-2:])
        if any(side % self.windows for side in size):  # windows that overlap
            return nn.functional.adaptive_max_pool2d(images, self.windows)
        return nn.functional.max_pool2d(images, tuple(side // self.windows for side in size))


class Digits(Images):
    """Handwritten digits and a small convolutional network: much arithmetic for few parameters (about 30,000)."""

    def model(self) -> nn.Module:
        """Three 3×3 convolutions on the image at twice its size, then one linear layer."""
        width, layers = (
            32,
            [nn.Upsample(scale_factor=2), *self._block(1, 32), *self._block(32, 32), *self._block(32, 32)],
        )
        head = [Windows(4), nn.Flatten(), nn.Dropout(self.config.dropout), nn.Linear(width * 16, 10)]
        model = nn.Sequential(*layers, *head)
        convert = nn.SyncBatchNorm.convert_sync_batchnorm
        return convert(model) if self.config.sync_batchnorm else model  # type: ignore[no-untyped-call]

    def _block(self, inputs: int, outputs: int) -> list[nn.Module]:
        norm = nn.BatchNorm2d(outputs) if self.config.norm == "batch" else nn.GroupNorm(4, outputs)
        return [nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU()]
