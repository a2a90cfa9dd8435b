"""A checkpoint is loaded whole and right, or not at all; older ones stay until a newer one is durable."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch

from proving_ground.training.checkpoints import checkpoint, stores
from proving_ground.training.checkpoints.checkpoint import CheckpointError, DamagedError, SupersededError
from proving_ground.training.checkpoints.stores import Folder

PARTS: dict[str, dict[str, Any]] = {
    "model": {"w": torch.arange(1000.0)},
    "training": {"step": 3, "metrics": {"accuracy": 0.5}},
}


def save(store: Folder, step: int, generation: int = 1, keep: int = 5) -> Path:
    return store.path / checkpoint.save(store, step, generation, PARTS, keep).name


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.fixture
def store(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "store")


def load_newest(store: Folder) -> tuple[checkpoint.Loaded | None, list[tuple[str, str]]]:
    bad: list[tuple[str, str]] = []
    return checkpoint.load_newest(store, lambda path, why: bad.append((path, why))), bad


def test_what_was_saved_comes_back(store: Folder) -> None:
    saved = checkpoint.save(store, 3, 1, PARTS, keep=5)
    loaded = checkpoint.load(store, saved.name)
    assert torch.equal(loaded.parts["model"]["w"], PARTS["model"]["w"])
    assert loaded.parts["training"] == PARTS["training"]
    assert (loaded.generation, loaded.sha256) == (1, saved.sha256)
    assert saved.bytes == sum(file.stat().st_size for file in (store.path / saved.name).glob("*.pt"))
    assert sorted(file.name for file in store.path.iterdir()) == ["generations", "step-00000003-g00000001"]


def test_only_the_newest_are_kept(store: Folder) -> None:
    for step in range(1, 7):
        save(store, step, keep=2)
    assert checkpoint.newest_first(store) == ["step-00000006-g00000001", "step-00000005-g00000001"]


def test_a_later_incarnation_is_newer_whatever_its_step(store: Folder) -> None:
    """It may have gone on from an earlier step, or from nothing; what the one before wrote is history then."""
    save(store, 100, 1)
    save(store, 20, 2)
    found, _ = load_newest(store)
    assert found is not None
    assert found.path.endswith("step-00000020-g00000002")


@pytest.mark.parametrize("seed", range(40))
def test_no_flipped_bit_is_ever_loaded(store: Folder, seed: int) -> None:
    """A bit anywhere: either the checkpoint is refused, or (in white space of the manifest) what is loaded is right."""
    path = save(store, 3)
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    file = dice.choice(sorted(path.iterdir()))
    flip(file, dice.randrange(file.stat().st_size * 8))
    try:
        loaded = checkpoint.load(store, path.name)
    except DamagedError:
        return
    assert file.name == "manifest.json"
    assert torch.equal(loaded.parts["model"]["w"], PARTS["model"]["w"])
    assert loaded.generation == 1


def renamed(path: Path) -> None:
    path.rename(path.with_name("step-00000099-g00000001"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: os.truncate(path / "model.pt", 100), "100 of "),
        (lambda path: (path / "model.pt").unlink(), "model.pt: cannot be read: No such file"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json: cannot be read: No such file"),
        (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
        (lambda path: (path / "manifest.json").write_bytes(bytes(900)), "manifest.json cannot be read"),
        (lambda path: (path / "manifest.json").write_text('{"checkpoint": {}, "sha256": ""}'), "its checksum differs"),
        (lambda path: flip(path / "model.pt", 4000), "checksum differs"),
        (renamed, "manifest.json: is of step-00000002-g00000001"),
    ],
)
def test_a_damaged_one_is_named_and_moved_to_quarantine(store: Folder, damage: Any, words: str) -> None:
    good, bad = save(store, 1), save(store, 2)
    damage(bad)
    found, moved = load_newest(store)
    assert found is not None
    assert found.path == str(good)
    ((path, why),) = moved
    assert words in why
    assert Path(path).parent == store.path / "quarantine"
    assert Path(path).is_dir()
    assert checkpoint.newest_first(store) == [good.name]
    save(store, 2)
    damage(bad)
    again = load_newest(store)[1]
    assert again[0][0] == f"{path}.2", "a second one of the same name finds its place"


def test_one_that_cannot_be_moved_is_passed_over(store: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = save(store, 1), save(store, 2)
    flip(bad / "model.pt", 4000)
    monkeypatch.setattr(stores, "make_folders", read_only)
    found, moved = load_newest(store)
    assert found is not None
    assert found.path == str(good)
    assert [path for path, _ in moved] == [str(bad)]


def read_only(_folder: Path) -> None:
    raise OSError(30, "Read-only file system")


def test_none_intact_is_an_error_that_moves_nothing_and_none_at_all_is_a_start(store: Folder) -> None:
    """Moved away, they would be missed by nobody at the next start, which would begin from nothing."""
    assert load_newest(store) == (None, [])
    path = save(store, 1)
    flip(path / "model.pt", 4000)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"none of 1 checkpoints is intact .*-g00000001: model.pt"):
            load_newest(store)
    assert path.exists()


def test_another_format_is_refused_in_one_line_and_not_passed_over(store: Folder) -> None:
    save(store, 1)
    old = store.path / "step-00000200"
    old.mkdir()
    (old / "manifest.json").write_text('{"format": 1, "step": 200, "files": {}}')
    found, _ = load_newest(store)
    assert found is not None, "an older incarnation's is not looked at"
    checkpoint.prune(store, 0)
    old.mkdir()
    (old / "manifest.json").write_text('{"format": 1, "step": 200, "files": {}}')
    with pytest.raises(CheckpointError, match="format 1; this version reads format 2") as error:
        load_newest(store)
    assert not isinstance(error.value, DamagedError)
    assert "\n" not in str(error.value)


def test_a_store_that_does_not_answer_says_nothing_about_its_checkpoints(
    store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going on from an older checkpoint, or from nothing, because of a permission would hide the loss."""
    good, newest = save(store, 1), save(store, 2)
    really = Folder.open

    def refuse(there: Folder, name: str, part: str) -> IO[bytes]:
        if name == newest.name:
            raise PermissionError(13, "Permission denied", part)
        return really(there, name, part)

    monkeypatch.setattr(Folder, "open", refuse)
    with pytest.raises(CheckpointError, match=r"step-00000002-g00000001: manifest.json: cannot be read: Perm"):
        load_newest(store)
    assert checkpoint.newest_first(store) == [newest.name, good.name]


def test_what_would_run_code_is_not_loaded(store: Folder) -> None:
    saved = checkpoint.save(store, 1, 1, {"model": {"w": Path("/")}}, keep=5)
    with pytest.raises(
        CheckpointError, match=r"model\.pt is intact, but torch cannot load it: Weights only load"
    ) as error:
        checkpoint.load(store, saved.name)
    assert "\n" not in str(error.value)


def test_strangers_in_the_folder_do_not_matter(store: Folder) -> None:
    """No pointer is followed, so a wrong or dangling one changes nothing."""
    path = save(store, 1)
    (store.path / "latest").symlink_to("step-00000099-g00000009")
    (store.path / "latest.txt").write_text("step-00000099-g00000009")
    (store.path / "step-none").mkdir()
    (store.path / "step-00000009-g00000009").write_text("a file")
    found, bad = load_newest(store)
    assert found is not None
    assert (found.path, bad) == (str(path), [])


def test_a_failed_save_leaves_nothing_with_a_checkpoints_name(store: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores, "sync", full)
    with pytest.raises(OSError, match="No space"):
        save(store, 2)
    assert sorted(path.name for path in store.path.iterdir()) == ["generations", "step-00000001-g00000001"]


def test_space_is_checked_before_a_byte_is_written(store: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    before = sorted(store.path.rglob("*"))
    monkeypatch.setattr(Folder, "free", lambda _: 1000)
    monkeypatch.setattr(Folder, "begin", None)
    with pytest.raises(OSError, match=r"needs 1\.1 MB, 0\.0 MB are free"):
        save(store, 2)
    assert sorted(store.path.rglob("*")) == before


def test_nothing_is_pruned_before_the_new_one_is_durable(store: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1, keep=1)

    def look(folder: Path) -> None:
        assert (store.path / "step-00000001-g00000001" / "manifest.json").exists()
        seen.append(folder)

    seen: list[Path] = []
    monkeypatch.setattr(stores, "sync", look)
    save(store, 2, keep=1)
    assert seen[-1] == store.path, "the rename was synced last"
    assert checkpoint.newest_first(store) == ["step-00000002-g00000001"]


def test_everything_is_flushed_before_it_gets_its_name(store: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    names: list[str] = []
    rename = Path.rename

    def remember_rename(old: Path, new: Path) -> Path:
        names.append("rename")
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", lambda handle: names.append(Path(f"/proc/self/fd/{handle}").readlink().name))
    monkeypatch.setattr(Path, "rename", remember_rename)
    save(store, 2)
    aside = next(name for name in names if name.endswith(".new"))
    assert names == ["model.pt", "training.pt", "manifest.json", aside, "rename", store.path.name]


def test_generations_are_claimed_once_and_fence_older_writers(store: Folder) -> None:
    assert checkpoint.claim_generation(store) == 1
    save(store, 1, 1)
    assert checkpoint.claim_generation(store) == 2
    with pytest.raises(SupersededError, match="generation 2 of the job has taken over"):
        save(store, 2, 1)
    assert checkpoint.newest_first(store) == ["step-00000001-g00000001"]
    save(store, 3, 2)


def test_the_fence_is_looked_at_right_before_the_commit(store: Folder) -> None:
    """A writer that stood still between writing and renaming finds out."""
    checkpoint.claim_generation(store)
    reached: list[tuple[str, int]] = []

    def overtake(phase: str, step: int) -> None:
        reached.append((phase, step))
        if phase == "before_rename":
            checkpoint.claim_generation(store)

    with pytest.raises(SupersededError):
        checkpoint.save(store, 7, 1, PARTS, 5, overtake)
    assert reached == [("checkpoint_write", 7), ("before_rename", 7)]
    assert checkpoint.newest_first(store) == []


def test_a_number_that_could_not_be_claimed_is_claimed_at_the_first_commit(
    store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(stores, "make_folders", read_only)
        assert checkpoint.claim_generation(store) == 1
    save(store, 1, 1)
    assert store.claims() == [1]
    with monkeypatch.context() as full:
        full.setattr(stores, "make_folders", read_only)
        assert checkpoint.claim_generation(store) == 2
    monkeypatch.setattr(stores, "owner", lambda: "somebody else")
    assert checkpoint.claim_generation(store) == 2
    monkeypatch.undo()
    with pytest.raises(SupersededError, match="generation 2"):
        save(store, 2, 2)


def test_numbers_go_on_when_claims_are_lost_and_old_claims_are_removed(store: Folder) -> None:
    save(store, 1, 41)
    (store.path / "generations" / "00000041").unlink()
    assert [checkpoint.claim_generation(store) for _ in range(5)] == [42, 43, 44, 45, 46]
    assert sorted(store.claims()) == [44, 45, 46]


def test_a_new_incarnation_clears_what_dead_writers_left(store: Folder) -> None:
    checkpoint.claim_generation(store)
    path = save(store, 1)
    (store.path / ".step-00000002-g00000001.new").mkdir()
    (store.path / ".step-00000001-g00000000.old").mkdir()
    checkpoint.claim_generation(store)
    assert sorted(entry.name for entry in store.path.iterdir()) == ["generations", path.name]


def test_every_random_state_comes_back(store: Folder) -> None:
    saved = checkpoint.save(store, 1, 1, {"random": checkpoint.random_state()}, keep=5)
    drawn = draw()
    assert draw() != drawn
    checkpoint.restore_random_state(checkpoint.load(store, saved.name).parts["random"])
    assert draw() == drawn


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002, S311 - the global states


def test_a_manifest_says_what_is_in_it(store: Folder) -> None:
    path = save(store, 3)
    document = json.loads((path / "manifest.json").read_text())
    about = document["checkpoint"]
    assert (about["step"], about["generation"], sorted(about["files"])) == (3, 1, ["model.pt", "training.pt"])
    assert about["wall_s"] > 1e9
    assert torch.load(path / "model.pt", weights_only=True)["w"].shape == (1000,), "a part is an ordinary torch file"
