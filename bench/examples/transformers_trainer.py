"""A trainer of Hugging Face's, with one callback: `python transformers_trainer.py STEPS BATCH FOLDER` on every node."""

from __future__ import annotations

import sys
from pathlib import Path

import pg_events
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed


class Fit(nn.Module):
    """A small network, with the loss that the trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of a batch."""
        return {"loss": (self.layer(x) - labels).square().mean()}


class Noise(Dataset[dict[str, Tensor]]):
    """4,096 samples, the same in every process."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        noise = torch.Generator().manual_seed(row)
        return {"x": torch.randn(64, generator=noise), "labels": torch.ones(1), "row": torch.tensor(row)}


def newest(folder: Path, processes: int) -> str | None:
    """The newest checkpoint that is whole: `get_last_checkpoint` takes one that a killed process left half written."""
    whole = [
        it
        for it in folder.glob("checkpoint-*")
        if (it / "trainer_state.json").exists()
        and (processes == 1 or len(list(it.glob("rng_state_*.pth"))) == processes)
    ]
    return str(max(whole, key=lambda it: int(it.name.partition("-")[2]))) if whole else None


def main(steps: int, batch: int, folder: Path) -> None:
    """Train from the newest checkpoint on."""
    torch.set_num_threads(1)
    set_seed(1)
    asked = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=batch, use_cpu=True, ddp_backend="gloo",
        report_to=[], logging_strategy="no", disable_tqdm=True, save_steps=20, save_total_limit=2,
        remove_unused_columns=False,
        ddp_find_unused_parameters=True,  # it keeps DDP's buckets: a job begun anew adds in the same order
    )  # fmt: skip
    trainer = Trainer(Fit(), asked, train_dataset=Noise(), callbacks=[pg_events.transformers_callback(10, rows="row")])
    trainer.train(resume_from_checkpoint=newest(folder, asked.world_size))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
