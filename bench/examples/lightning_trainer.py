"""A trainer of Lightning's, with one callback: `python lightning_trainer.py STEPS BATCH FOLDER` on every node."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import pg_events
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Fit(pl.LightningModule):  # type: ignore[misc]  # its types are not checked
    """A small network, fitted to noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 1)

    def training_step(self, batch: list[Tensor], _number: int) -> Tensor:
        """The loss of one batch."""
        loss: Tensor = self.layer(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(steps: int, batch: int, folder: Path) -> None:
    """Train from the newest checkpoint on."""
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    data = DataLoader(TensorDataset(torch.randn(batch * 64, 64)), batch_size=batch)
    saver = ModelCheckpoint(folder, filename="newest", every_n_train_steps=20, enable_version_counter=False)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp", max_steps=steps,
        logger=False, enable_progress_bar=False, callbacks=[saver, pg_events.lightning_callback(batch, 10)],
    )  # fmt: skip
    newest = folder / "newest.ckpt"
    trainer.fit(Fit(), data, ckpt_path=newest if newest.exists() else None)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
