"""A trainer of large samples under a limit of memory: `python -m tests.training.wide GROUP run …`.

It joins a control group once a first step has loaded its libraries, so what the kernel counts is what the training
allocates and reads, files in the page cache included. For `test_memory_limit`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

from proving_ground.training import __main__ as trainer
from proving_ground.training import loop
from proving_ground.training.config import Config, from_dict
from proving_ground.training.data import mapped as data
from proving_ground.training.data.order import Rows
from proving_ground.training.models.digits import Digits
from proving_ground.training.models.task import Batch

SIDE = 512  # pixels: a sample has 256 KiB
SHARDS = 8


def marker(rows: Rows) -> np.ndarray:
    """The first pixel of a sample, by which it is known."""
    return (rows % 251).astype(np.uint8)


def write(folder: Path, rows: int) -> None:
    """A set of so many samples: files with holes, which take no place on the disk and fill memory as any other do."""
    folder.mkdir()
    each, shards = rows // SHARDS, []
    for number in range(SHARDS):
        mine = np.arange(number * each, (number + 1) * each)
        image, label = (folder / f"train-{number}-{name}.npy" for name in ("image", "label"))
        made = np.lib.format.open_memmap(image, mode="w+", dtype=np.uint8, shape=(each, SIDE, SIDE))
        made[:, 0, 0] = marker(mine)
        made.flush()
        del made
        with image.open("rb") as file:  # what is in the page cache already would be counted for who wrote it
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        np.save(label, mine % 10)
        shards.append({"rows": each, "files": {"image": entry(image), "label": entry(label)}})
    columns = {"image": {"dtype": "uint8", "shape": [SIDE, SIDE]}, "label": {"dtype": "int64", "shape": []}}
    about = {"format": 1, "name": "wide", "source": "made here", "columns": columns}
    (folder / "manifest.json").write_text(json.dumps({**about, "splits": {"train": shards}}))


def entry(file: Path) -> dict[str, object]:
    """What a manifest says of a file; the hash is not looked at when it is mapped."""
    return {"file": file.name, "bytes": file.stat().st_size, "sha256": ""}


class Wide(Digits):
    """The network of `digits` on every 64th pixel of large images, which are read whole."""

    def __init__(self, config: Config) -> None:
        self.config = config
        opened = data.open_data(Path(config.data))
        self._image, self._label = opened.column("train", "image"), opened.column("train", "label")
        self.rows, self.test_rows = len(self._label), 0

    def batch(self, split: str, rows: Rows) -> Batch:
        assert split == "train"
        images = self._image.rows(rows)
        assert (images[:, 0, 0] == marker(rows)).all()
        small = torch.from_numpy(images[:, :: SIDE // 8, :: SIDE // 8].astype(np.float32))
        return Batch(small[:, None], torch.from_numpy(self._label.rows(rows)), rows)


if __name__ == "__main__":
    loop.train(from_dict({"steps": 1}), tell=lambda _: None)  # loads what is loaded when it is first needed
    vars(loop)["task_of"] = lambda _: Wide
    Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
    trainer.leave(trainer.main(sys.argv[sys.argv.index("run") :]))
