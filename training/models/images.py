"""Images and their labels: the data, the loss and the judgement that all networks for images share.

Subclasses are `digits.Digits` and those of `networks`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from proving_ground.training.config import Config, ConfigError
from proving_ground.training.data.mapped import DataError
from proving_ground.training.data.order import Rows
from proving_ground.training.data.shards import opened
from proving_ground.training.models.task import Batch, Metric, make_optimizer


class Images:
    """A data set of images and labels, the loss and the judgement; subclasses bring the network.

    The set has columns `image` (uint8, (height, width) or (height, width, 3)) and `label` (int64). Its manifest may
    say how many `classes` there are (else: as many as the train split has) and the brightest `level` (else 255).
    """

    learns = True

    def __init__(self, config: Config) -> None:
        if config.sync_batchnorm and not torch.cuda.is_available():
            raise ConfigError("sync_batchnorm = true needs CUDA: torch has no SyncBatchNorm for CPUs")
        self.config = config
        data = opened(config, "digits")
        shape = tuple(data.manifest["columns"].get("image", {}).get("shape", (8, 8)))
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 3):
            raise DataError(f"{data.path}: column 'image' must be (height, width) or (height, width, 3), not {shape}")
        data.expect(image=("uint8", shape), label=("int64", ()))
        self._images = {split: data.column(split, "image") for split in ("train", "test")}
        self._labels = {split: data.column(split, "label") for split in ("train", "test")}
        self.rows, self.test_rows = len(self._labels["train"]), len(self._labels["test"])
        self._level = float(data.manifest.get("level", 255))
        self.classes = int(data.manifest.get("classes") or 1 + self._labels["train"].rows(np.arange(self.rows)).max())

    def model(self) -> nn.Module:
        """The network."""
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """As configured."""
        return make_optimizer(self.config, model)

    def batch(self, split: str, rows: Rows) -> Batch:
        """Images (n, channels, height, width) from 0 to 1 and labels (n,)."""
        images = torch.from_numpy(self._images[split].rows(rows))
        channels_first = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)
        return Batch(channels_first.float() / self._level, torch.from_numpy(self._labels[split].rows(rows)), rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy."""
        images, labels, _ = batch
        return nn.functional.cross_entropy(model(images).float(), labels, reduction="sum")

    def sums(self, model: nn.Module, batch: Batch) -> Tensor:
        """Right answers, answers, and the cross entropy."""
        images, labels, _ = batch
        answers = model(images).float()
        right = (answers.argmax(dim=1) == labels).sum()
        lost = nn.functional.cross_entropy(answers, labels, reduction="sum")
        return torch.stack([right, torch.tensor(len(labels), device=right.device), lost]).double()

    def metrics(self, sums: list[float]) -> list[Metric]:
        """Accuracy from 0 to 1, and the mean cross entropy in nats."""
        right, count, lost = sums
        return [Metric("accuracy", right / count), Metric("loss", lost / count)]
