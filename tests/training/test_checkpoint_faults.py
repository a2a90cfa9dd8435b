"""Real faults: ranks killed while they write, disks that are full or read-only, a partitioned first rank."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.checkpoints.saving import FIRST_STEPS
from proving_ground.training.checkpoints.stores import Folder
from proving_ground.training.phases import CONTROL_VARIABLE
from tests.training.ranks import Ranks, sets, start

STEPS = 12
MODEL = {
    "model": "digits", "dropout": 0.3, "global_batch": 16, "steps": STEPS, "checkpoint_every": 4, "eval_every": -1,
    "fingerprint_every": 1,
}  # fmt: skip
"""With random numbers in it, so that their state matters."""


def run(folder: Path, saved: Path, size: int = 1, control: Path | str = "") -> Ranks:
    return start(folder, size, sets(**MODEL, checkpoint_dir=saved), **{CONTROL_VARIABLE: str(control)})


def prints(job: Ranks) -> dict[int, dict[str, Any]]:
    """Step → everything that a fingerprint says about the state after it."""
    return {
        event["step"]: {name: value for name, value in event.items() if name != "t"}
        for event in job.events(0, "fingerprint")
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    job = run(folder / "run", folder / "saved")
    assert job.wait() == [0]
    return prints(job)


def until(what: str, job: Ranks, name: str, timeout_s: float = 30) -> dict[str, Any]:
    end = time.monotonic() + timeout_s
    while not (found := job.events(0, name)):
        assert time.monotonic() < end, f"{what}: {job.printed()}"
        time.sleep(0.005)
    return found[0]


@pytest.mark.parametrize("phase", ["before_checkpoint", "checkpoint_write", "before_rename"])
@pytest.mark.parametrize("first", [4, 8])
def test_killed_at_any_point_of_a_save_it_goes_on_bitwise(
    tmp_path: Path, undisturbed: dict[int, dict[str, Any]], phase: str, first: int
) -> None:
    """Nothing that was durable is lost, and the end is the end of the undisturbed training."""
    control = tmp_path / "control"
    control.mkdir()
    if first == 8:
        short = start(tmp_path / "short", 1, sets(**MODEL | {"steps": 4}, checkpoint_dir=tmp_path / "saved"))
        assert short.wait() == [0]
    (control / "hold.json").write_text(json.dumps({"id": "1", "phase": phase, "ranks": [0]}))
    job = run(tmp_path / "killed", tmp_path / "saved", control=control)
    where = until(phase, job, "phase")["step"]
    os.kill(job.processes[0].pid or 0, signal.SIGKILL)
    assert job.wait() == [-signal.SIGKILL]
    (control / "hold.json").unlink()
    again = run(tmp_path / "again", tmp_path / "saved")
    assert again.wait() == [0]
    resumed = [event["step"] for event in again.events(0, "resume")]
    assert resumed == ([4] if first == 8 else [])
    assert where == first or phase == "before_checkpoint"
    done = prints(again)
    assert done[STEPS] == undisturbed[STEPS]
    assert {step: undisturbed[step] for step in done} == done
    assert again.events(0, "quarantine") == []
    assert not list((tmp_path / "saved").glob(".step-*")), "what the dead writer left is cleared"


def test_a_first_rank_that_was_away_can_no_longer_commit(tmp_path: Path) -> None:
    """It stands still right before its rename; a new incarnation takes over; then it goes on."""
    control = tmp_path / "control"
    control.mkdir()
    (control / "hold.json").write_text(json.dumps({"id": "1", "phase": "before_rename", "ranks": [0]}))
    old = run(tmp_path / "old", tmp_path / "saved", control=control)
    until("before_rename", old, "phase")
    os.kill(old.processes[0].pid or 0, signal.SIGSTOP)
    new = run(tmp_path / "new", tmp_path / "saved")
    assert new.wait() == [0]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "saved").rglob("*")}
    os.kill(old.processes[0].pid or 0, signal.SIGCONT)
    assert old.wait() == [1]
    assert "SupersededError" in old.printed()
    assert "generation 2 of the job has taken over" in old.printed()
    assert old.events(0, "checkpoint") == []
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "saved").rglob("*")}
    assert {path for path in after if path.name.startswith("step-")} == {
        path for path in before if path.name.startswith("step-")
    }


def test_a_damaged_newest_is_told_on_the_first_rank_alone_and_all_go_on(tmp_path: Path) -> None:
    job = run(tmp_path / "run", tmp_path / "saved", 2)
    assert job.wait() == [0, 0]
    newest = Path(job.events(0, "checkpoint")[-1]["path"])
    os.truncate(newest / "model.pt", 100)
    again = run(tmp_path / "again", tmp_path / "saved", 2)
    assert again.wait() == [0, 0]
    assert [event["step"] for rank in (0, 1) for event in again.events(rank, "resume")] == [8, 8]
    assert [len(again.events(rank, "quarantine")) for rank in (0, 1)] == [1, 0]


def test_nothing_intact_stops_all_ranks_with_the_same_line(tmp_path: Path) -> None:
    """A rank that is not told why waits for the others until its patience ends, and says that instead."""
    job = run(tmp_path / "run", tmp_path / "saved", 2)
    assert job.wait() == [0, 0]
    for event in job.events(0, "checkpoint"):
        os.truncate(Path(event["path"]) / "model.pt", 100)
    again = run(tmp_path / "again", tmp_path / "saved", 2)
    assert again.wait() == [1, 1]
    for rank in (0, 1):
        assert "none of 3 checkpoints is intact" in again.printed(rank)


def test_where_seconds_decide_all_ranks_save_at_the_same_steps(tmp_path: Path) -> None:
    """The first rank's clock decides; a rank that saved alone would wait for the others for ever."""
    keys = {"model": "stocks", "steps": 300, "checkpoint_interval_s": 0.05, "timeout_s": 10, "eval_every": -1}
    job = start(tmp_path / "run", 2, sets(**keys, checkpoint_dir=tmp_path / "saved"))
    assert job.wait() == [0, 0], job.printed()
    steps = [event["step"] for event in job.events(0, "checkpoint")]
    assert steps[0] == FIRST_STEPS + 1
    assert steps[-1] == 300
    assert len(steps) > 2
    assert job.events(1, "checkpoint") == []


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A small disk of its own."""
    folder.mkdir()
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Path]:
    """A real file system on 16 MB."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    make = ["mkfs.ext4", "-q", "-m", "0", str(image)]
    made = subprocess.run(make, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no ext4 here: {made.stderr.strip()}")
    with mounted(tmp_path / "ext4", "-o", "loop", str(image)) as folder:
        yield folder


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")


@pytest.mark.root
@needs_root
def test_training_survives_a_disk_that_fills_up(tmp_path: Path) -> None:
    """Refused before a byte is written; the checkpoint before stays, and is gone on from."""
    with mounted(tmp_path / "tmpfs", "-t", "tmpfs", "-o", "size=1150k", "small") as disk:
        small = sets(**MODEL | {"model": "stocks", "dropout": 0}, checkpoint_dir=disk / "saved")  # 90 KB
        job = start(tmp_path / "run", 1, small)
        assert job.wait() == [0]
        refused = [event for event in job.events(0, "error") if not event["fatal"]]
        assert refused
        assert "MB are free; training goes on" in refused[0]["message"]
        good = [event["step"] for event in job.events(0, "checkpoint")]
        assert good
        assert len(checkpoint.newest_first(Folder(disk / "saved"))) == len(good)
        again = start(tmp_path / "again", 1, small)
        assert again.wait() == [0]
        assert again.events(0, "resume")[0]["step"] == good[-1]


PARTS: dict[str, dict[str, Any]] = {"model": {"w": torch.zeros(250_000)}, "more": {"w": torch.ones(250_000)}}


@pytest.mark.root
@needs_root
def test_a_disk_that_turns_out_full_or_read_only_leaves_what_was_there(
    ext4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Folder(ext4 / "saved")
    generation = checkpoint.claim_generation(store)
    checkpoint.save(store, 1, generation, PARTS, keep=2)
    (ext4 / "ballast").write_bytes(bytes((store.free() or 0) - 1_200_000))
    with monkeypatch.context() as blind:  # somebody else took the space after we had looked
        blind.setattr(checkpoint, "check_space", lambda *_: None)
        with pytest.raises(OSError, match="No space left on device"):
            checkpoint.save(store, 2, generation, PARTS, keep=2)
    assert [path.name for path in (ext4 / "saved").iterdir()] != []
    assert store.names() == ["step-00000001-g00000001"]
    assert not list(store.path.glob(".step-*")), "the space is given back"
    (ext4 / "ballast").unlink()
    bad = checkpoint.save(store, 3, generation, PARTS, keep=2).name
    os.truncate(store.path / bad / "more.pt", 1000)
    subprocess.run(["mount", "-o", "remount,ro", str(ext4)], check=True)
    with pytest.raises(OSError, match="Read-only file system"):
        checkpoint.save(store, 4, generation, PARTS, keep=2)
    told: list[tuple[str, str]] = []
    found = checkpoint.load_newest(store, lambda path, why: told.append((path, why)))
    assert found is not None
    assert found.path.endswith("step-00000001-g00000001")
    assert [path for path, _ in told] == [store.where(bad)], "it cannot be moved, so it is passed over"
    assert checkpoint.claim_generation(store) == generation + 1, "training can start; it cannot save"
