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
        loss: Tensor = self.layer(batch[1]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


class RandomState(pl.Callback):  # type: ignore[misc]  # its types are not checked
    """Keeps torch's random state, which Lightning's checkpoints do not have."""

    state: Tensor | None = None

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint gets."""
        return {"random": torch.get_rng_state()}

    def load_state_dict(self, saved: dict[str, Tensor]) -> None:
        """What a checkpoint had."""
        self.state = saved["random"]

    def on_fit_start(self, *_: object) -> None:
        """Before the loader draws from it."""
        if self.state is not None:
            torch.set_rng_state(self.state)
            self.state = None


def main(steps: int, batch: int, folder: Path) -> None:
    """Train from the newest checkpoint on."""
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    nodes, local = (int(os.environ[name]) for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    rows = 20 * batch * nodes * local  # 20 steps an epoch: a checkpoint at its end needs no place in the data
    data = DataLoader(TensorDataset(torch.arange(rows), torch.randn(rows, 64)), batch_size=batch, shuffle=True)
    saver = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=20)
    tell = pg_events.lightning_callback(batch, 10, rows=lambda found: found[0])
    trainer = pl.Trainer(
        accelerator="cpu", devices=local, num_nodes=nodes, max_steps=steps, logger=False,
        strategy="ddp_find_unused_parameters_true",  # it keeps DDP's buckets: a job begun anew adds in the same order
        enable_progress_bar=False, callbacks=[saver, tell, RandomState()],
    )  # fmt: skip
    saved = sorted(folder.glob("step=*.ckpt"), key=lambda it: int(it.stem.partition("=")[2].partition("-")[0]))
    trainer.fit(Fit(), data, ckpt_path=saved[-1] if saved else None)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
