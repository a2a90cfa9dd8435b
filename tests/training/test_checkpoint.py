"""A checkpoint is loaded whole and right, or not at all."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training import checkpoint
from training.checkpoint import CheckpointError

PARTS: dict[str, dict[str, Any]] = {
    "model": {"w": torch.arange(1000.0)},
    "training": {"step": 3, "metrics": {"accuracy": 0.5}},
}


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    file.write_bytes(content)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    path, size = checkpoint.save(tmp_path, 3, PARTS, keep=5)
    loaded = checkpoint.load(path)
    assert torch.equal(loaded["model"]["w"], PARTS["model"]["w"])
    assert loaded["training"] == PARTS["training"]
    assert size == sum(file.stat().st_size for file in path.glob("*.pt"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step-00000003"]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in range(1, 7):
        checkpoint.save(tmp_path, step, PARTS, keep=2)
    assert [path.name for path in checkpoint.newest_first(tmp_path)] == ["step-00000006", "step-00000005"]


@pytest.mark.parametrize("seed", range(40))
def test_no_flipped_bit_is_ever_loaded(tmp_path: Path, seed: int) -> None:
    """A bit anywhere: either the checkpoint is refused, or (in a remark of the manifest) what is loaded is right."""
    path, _ = checkpoint.save(tmp_path, 3, PARTS, keep=5)
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    file = dice.choice(sorted(path.iterdir()))
    flip(file, dice.randrange(file.stat().st_size * 8))
    try:
        loaded = checkpoint.load(path)
    except CheckpointError:
        return
    assert file.name == "manifest.json"
    assert torch.equal(loaded["model"]["w"], PARTS["model"]["w"])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: os.truncate(path / "model.pt", 100), "100 of "),
        (lambda path: (path / "model.pt").unlink(), "model.pt: cannot be read: No such file"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json cannot be read"),
        (lambda path: (path / "manifest.json").write_text('{"format": 9}'), "format 9; this version reads format 1"),
        (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
        (lambda path: flip(path / "model.pt", 4000), "checksum differs"),
    ],
)
def test_a_bad_one_is_passed_over_and_named(tmp_path: Path, damage: Any, words: str) -> None:
    good, _ = checkpoint.save(tmp_path, 1, PARTS, keep=5)
    bad, _ = checkpoint.save(tmp_path, 2, PARTS, keep=5)
    damage(bad)
    told: list[str] = []
    found = checkpoint.load_newest(tmp_path, told.append)
    assert found is not None
    assert found[0] == good
    assert len(told) == 1
    assert "step-00000002" in told[0]
    assert words in told[0]


def test_none_intact_is_an_error_and_none_at_all_is_a_start(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path / "nothing", print) is None
    path, _ = checkpoint.save(tmp_path, 1, PARTS, keep=5)
    flip(path / "model.pt", 4000)
    with pytest.raises(CheckpointError, match="none of 1 checkpoints is intact"):
        checkpoint.load_newest(tmp_path, print)


def test_a_failed_save_leaves_nothing_with_a_checkpoints_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, PARTS, keep=5)
    monkeypatch.setattr(checkpoint, "sync_folder", full_disk)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, PARTS, keep=5)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def full_disk(_path: Path) -> None:
    raise OSError(28, "No space left on device")


def test_everything_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    rename = Path.rename

    def remember_rename(old: Path, new: Path) -> Path:
        names.append("rename")
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", lambda handle: names.append(Path(f"/proc/self/fd/{handle}").readlink().name))
    monkeypatch.setattr(Path, "rename", remember_rename)
    checkpoint.save(tmp_path, 1, PARTS, keep=5)
    aside = next(name for name in names if name.endswith(".new"))
    assert names == ["model.pt", "training.pt", "manifest.json", aside, "rename", tmp_path.name]


def test_every_random_state_comes_back(tmp_path: Path) -> None:
    path, _ = checkpoint.save(tmp_path, 1, {"random": checkpoint.random_state()}, keep=5)
    drawn = draw()
    assert draw() != drawn
    checkpoint.restore_random_state(checkpoint.load(path)["random"])
    assert draw() == drawn


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002, S311 - the global states


def test_a_manifest_says_what_is_in_it(tmp_path: Path) -> None:
    path, _ = checkpoint.save(tmp_path, 3, PARTS, keep=5)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["step"], sorted(manifest["files"])) == (3, ["model.pt", "training.pt"])
    assert manifest["wall_s"] > 1e9
