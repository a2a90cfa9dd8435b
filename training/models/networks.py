"""Networks that tell images apart: ResNet-50, ResNet-152 and ViT. Some of `training.models`.

The networks are torchvision's. `tiny` keeps the depth of a ResNet at an eighth of its width, and six blocks of a ViT:
a CPU trains them in seconds. `full` is the published network at 224 × 224 pixels. Images of any size are enlarged to
what the network takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from proving_ground.training.models.images import Images

FULL_PIXELS, TINY_PIXELS = 224, 32
"""Sides of the square that a network takes."""
NARROWER = 8
"""A tiny ResNet's channels are the published ones over this."""


class Enlarged(nn.Module):
    """A network of torchvision's behind images of any size, grey ones too."""

    def __init__(self, network: nn.Module, pixels: int) -> None:
        super().__init__()
        self.network, self.pixels = network, pixels

    def forward(self, images: Tensor) -> Tensor:
        """The network's answers (n, classes)."""
        square = nn.functional.interpolate(images, size=(self.pixels, self.pixels))
        answers: Tensor = self.network(square.expand(-1, 3, -1, -1))
        return answers


class NarrowResNet(ResNet):  # type: ignore[misc]  # torchvision has no types
    """The published layers with fewer channels."""

    def _make_layer(self, block: Any, planes: int, *more: Any, **named: Any) -> nn.Sequential:  # noqa: ANN401 - its own
        layer: nn.Sequential = super()._make_layer(block, planes // NARROWER, *more, **named)
        return layer


class Residual(Images):
    """What the ResNets share; `LAYERS` is how many blocks each stage has (He et al., 2015, table 1)."""

    LAYERS: ClassVar[list[int]]

    def model(self) -> nn.Module:
        """The network; group normalisation unless batch statistics are asked for (Wu and He, 2018)."""
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d if self.config.norm == "batch" else group_norm
        if self.config.size == "full":
            network = ResNet(Bottleneck, self.LAYERS, self.classes, zero_init_residual=True, norm_layer=norm)
            pixels = FULL_PIXELS
        else:
            network = NarrowResNet(Bottleneck, self.LAYERS, zero_init_residual=True, norm_layer=norm)
            pixels = TINY_PIXELS
            network.fc = nn.Linear(network.fc.in_features // NARROWER, self.classes)
        convert = nn.SyncBatchNorm.convert_sync_batchnorm
        return Enlarged(convert(network) if self.config.sync_batchnorm else network, pixels)  # type: ignore[no-untyped-call]

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The bottlenecks."""
        return [module for module in model.modules() if isinstance(module, Bottleneck)]


class ResNet50(Residual):
    """50 layers: 25.6 million parameters at full size and 1,000 classes."""

    LAYERS: ClassVar = [3, 4, 6, 3]


class ResNet152(Residual):
    """152 layers: 60.2 million parameters at full size and 1,000 classes."""

    LAYERS: ClassVar = [3, 8, 36, 3]


class ViT(Images):
    """A vision transformer; full: ViT-B/16, 86.6 million parameters at 1,000 classes (Dosovitskiy et al., 2020)."""

    FULL: ClassVar = {"patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
    TINY: ClassVar = {"patch_size": 4, "num_layers": 6, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}

    def model(self) -> nn.Module:
        """The network."""
        pixels, shape = (FULL_PIXELS, self.FULL) if self.config.size == "full" else (TINY_PIXELS, self.TINY)
        network = VisionTransformer(pixels, num_classes=self.classes, dropout=self.config.dropout, **shape)
        # Its gradient comes with the strides of a whole sequence, of which DDP warns.
        network.class_token.register_hook(lambda it: it.clone(memory_format=torch.contiguous_format))
        return Enlarged(network, pixels)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The encoder's."""
        return [module for module in model.modules() if isinstance(module, EncoderBlock)]


def group_norm(channels: int) -> nn.Module:
    """32 groups where there are channels enough, as in the paper; two channels a group at least."""
    return nn.GroupNorm(min(32, channels // 2), channels)
