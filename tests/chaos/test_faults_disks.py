"""The checkpoints' disk full, slow, read-only; checkpoints damaged: on a real volume, and after healing."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.local import volume
from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.bench.protocols import ClusterError, ProcessSpec
from proving_ground.chaos.faults import FAULTS, checkpoints, fault
from tests.bench.clusters.conftest import until
from tests.chaos.conftest import Idle, Job, job_on, works

WRITE = """
import os
try:
    with open(os.environ["PROVING_GROUND_VOLUME"] + "/written", "wb") as file:
        file.write(bytes(200_000)); file.flush(); os.fsync(file.fileno())
    os.unlink(file.name)
    print("written")
except OSError as error: print(error.strerror)
"""
HOLD = """
import os, time
held = open(os.environ["PROVING_GROUND_VOLUME"] + "/held", "w")
print("up", flush=True)
time.sleep(60)
"""
CHECKPOINT_FAULTS = ["checkpoint_truncated", "checkpoint_bitflip", "checkpoint_missing", "checkpoint_pointer"]


@pytest.mark.root
@pytest.mark.parametrize(
    ("key", "refusal"), [("disk_full", "No space left on device"), ("disk_readonly", "Read-only file system")]
)
def test_a_disk_that_takes_no_writes_until_it_is_healed(job: Job, key: str, refusal: str) -> None:
    kind, scene = FAULTS[key], job.injection(key)
    assert job.run("n2", WRITE) == "written"
    begin = kind.inject(scene)
    assert [job.run(node, WRITE) for node in ("n1", "n3")] == [refusal] * 2
    end = kind.heal(scene)
    assert works(kind, scene, begin, end) is True
    assert [job.run(node, WRITE) for node in ("n1", "n3")] == ["written"] * 2
    kind.heal(scene)
    assert job.run("n2", WRITE) == "written"


@pytest.mark.root
def test_disk_full_leaves_what_it_is_told_to(job: Job) -> None:
    scene = job.injection("disk_full", leave_mb=5)
    begin = FAULTS["disk_full"].inject(scene)
    assert 4 * 2**20 <= begin["free_bytes"] <= 5 * 2**20
    assert job.run("n2", WRITE) == "written"
    FAULTS["disk_full"].heal(scene)


@pytest.mark.root
def test_a_disk_turns_read_only_once_no_file_is_being_written(job: Job) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(volume, "BUSY_S", 0.05)
        argv = ("python", "-I", "-S", "-c", HOLD)
        log = job.folder / "held.log"
        log.unlink(missing_ok=True)
        job.cluster.start(ProcessSpec("n1", 6, argv, log=log))
        until(lambda: log.exists() and "up" in log.read_text())
        scene = job.injection("disk_readonly")
        with pytest.raises(ClusterError, match=r"the volume cannot turn read-only: .*busy"):
            FAULTS["disk_readonly"].inject(scene)
    job.cluster.kill("n1", 6, signal.SIGKILL)
    begin = FAULTS["disk_readonly"].inject(scene)
    assert works(FAULTS["disk_readonly"], scene, begin, FAULTS["disk_readonly"].heal(scene)) is True


@pytest.mark.root
def test_disk_slow_holds_every_node_back(job: Job) -> None:
    kind, scene = FAULTS["disk_slow"], job.injection("disk_slow", mb_per_s=2)
    begin = kind.inject(scene)
    assert job.cluster.write_rate("n3", 1) < 3e6
    end = kind.heal(scene)
    assert works(kind, scene, begin, end) is True
    assert works(kind, scene, begin) is None
    assert max(job.cluster.write_rate("n3", 1) for _ in range(3)) > 5e6
    assert kind.heal(scene) == {}


@pytest.mark.root
@pytest.mark.parametrize("key", ["disk_full", "disk_readonly", "disk_slow"])
def test_without_effect_it_did_not_work(job: Job, key: str) -> None:
    scene = job.injection(key, cluster=Idle(job.cluster))
    begin = FAULTS[key].inject(scene)
    assert works(FAULTS[key], scene, begin, FAULTS[key].heal(scene)) is False


def test_a_plain_folder_cannot_be_full_and_says_so(plain_job: Job) -> None:
    for key in ("disk_full", "disk_slow", "disk_readonly"):
        assert "volume: off" in (FAULTS[key].why_not(plain_job.cluster) or "")
        with pytest.raises(ClusterError, match=r"a plain folder here|cannot be slowed down here"):
            FAULTS[key].inject(plain_job.injection(key))
    assert plain_job.run("n1", WRITE) == "written"


@pytest.mark.root
def test_plain_nodes_can_have_a_disk_as_well(tmp_path: Path) -> None:
    able = [it for it in LocalCluster().abilities() if it.name in ("volume", "signals")]
    for job in job_on(LocalCluster(able, preload=None), tmp_path):
        assert set(job.addresses.values()) == {"127.0.0.1"}
        scene = job.injection("disk_full")
        FAULTS["disk_full"].inject(scene)
        assert job.run("n2", WRITE) == "No space left on device"
        FAULTS["disk_full"].heal(scene)
        assert job.run("n2", WRITE) == "written"


@pytest.mark.parametrize("key", CHECKPOINT_FAULTS)
def test_a_damaged_checkpoint_has_other_bytes_and_its_reader_is_killed(plain_job: Job, key: str) -> None:
    kind, scene = FAULTS[key], plain_job.injection(key, "n2")
    folder = plain_job.checkpoints_folder
    intact = {path: path.read_bytes() for path in folder.glob("*/*")}
    begin = kind.inject(scene)
    assert works(kind, scene, begin)
    changed = [path for path, content in intact.items() if not path.exists() or path.read_bytes() != content]
    assert all(path.parent.name == "step-00000020-g00000001" for path in changed), "only the newest"
    assert [path.name for path in changed] == ([] if key == "checkpoint_pointer" else ["model.pt"])
    assert [it["node"] for it in begin["killed"]] == ["n2"]
    kind.heal(scene)
    kind.heal(scene)


def test_what_each_damage_is(plain_job: Job) -> None:
    scene = plain_job.injection("checkpoint_truncated", kill=0, keep_percent=25)
    cut = FAULTS["checkpoint_truncated"].inject(scene)
    assert (cut["before"]["bytes"], cut["after"]["bytes"]) == (4000, 1000)
    assert "killed" not in cut
    scene = plain_job.injection("checkpoint_bitflip", kill=0)
    part = plain_job.checkpoints_folder / "step-00000020-g00000001" / "model.pt"
    before = part.read_bytes()
    FAULTS["checkpoint_bitflip"].inject(scene)
    different = int.from_bytes(before) ^ int.from_bytes(part.read_bytes())
    assert different.bit_count() == 1
    scene = plain_job.injection("checkpoint_missing", kill=0)
    assert FAULTS["checkpoint_missing"].inject(scene)["after"] is None


def test_a_pointer_to_nothing_is_newer_than_all_and_is_taken_away_again(plain_job: Job) -> None:
    scene = plain_job.injection("checkpoint_pointer", kill=0)
    folder = plain_job.checkpoints_folder
    begin = FAULTS["checkpoint_pointer"].inject(scene)
    assert begin["path"] == "step-01000020-g00000001/manifest.json"
    assert [path.name for path in (folder / "step-01000020-g00000001").iterdir()] == ["manifest.json"]
    FAULTS["checkpoint_pointer"].heal(scene)
    assert max(folder.glob("step-*")).name == "step-00000020-g00000001"
    (folder / "latest").write_text("step-00000020-g00000001\n")
    scene = plain_job.injection("checkpoint_pointer", kill=0)
    FAULTS["checkpoint_pointer"].inject(scene)
    assert (folder / "latest").read_text() == "step-none\n"
    (folder / "latest").unlink()


def test_what_was_being_written_just_then_is_damaged_too(plain_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the restart reads the newer one, and nobody ever meets the damage. It is whole a little after the kill."""
    scene = plain_job.injection("checkpoint_bitflip", "n2")
    (folder,) = plain_job.checkpoints_folder.glob("step-00000020-*")
    newer = folder.with_name(folder.name.replace("20", "30", 1))

    def commit() -> None:
        hidden = shutil.copytree(folder, folder.with_name("hidden"))
        hidden.rename(newer)

    part = max(folder.iterdir(), key=lambda it: it.stat().st_size).name
    whole = (folder / part).read_bytes()
    signal, timers = scene.can.signal, list[threading.Timer]()

    def signalled(*about: Any) -> None:
        time.sleep(checkpoints.WRITE_S)  # a busy machine
        signal(*about)
        timers.append(threading.Timer(checkpoints.WRITE_S / 4, commit))
        timers[0].start()

    monkeypatch.setattr(scene.can, "signal", signalled)
    told = FAULTS["checkpoint_bitflip"].inject(scene)
    timers[0].join()
    assert told["path"] == f"{newer.name}/{part}"
    assert list(told["damaged"]) == [f"{folder.name}/{part}", told["path"]]
    first, second = told["damaged"].values()
    assert first < told["t"] < second, "a worker is killed in between"
    assert (newer / part).read_bytes() != (folder / part).read_bytes() != whole
    assert works(FAULTS["checkpoint_bitflip"], scene, told)


def test_what_the_restart_goes_back_to_is_left_whole(plain_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has found the newest to be bad, and moved it away: an older one is the newest then, or there is none."""
    scene = plain_job.injection("checkpoint_bitflip", "n2")
    *_, older, newest = sorted(plain_job.checkpoints_folder.glob("step-*"))
    intact, signal = {it: it.read_bytes() for it in older.iterdir()}, scene.can.signal
    timers: list[threading.Timer] = []

    def signalled(*about: Any) -> None:
        signal(*about)
        newest.rename(newest.with_name("bad"))
        timers.append(threading.Timer(checkpoints.WRITE_S / 2, older.rename, [older.with_name("gone")]))
        timers[0].start()

    monkeypatch.setattr(scene.can, "signal", signalled)
    told = FAULTS["checkpoint_bitflip"].inject(scene)
    timers[0].join()
    assert list(told["damaged"]) == [told["path"]]
    gone = older.with_name("gone")
    assert {older / it.name: it.read_bytes() for it in gone.iterdir()} == intact


def test_no_checkpoint_and_no_worker_are_errors_and_nothing_is_damaged(plain_job: Job) -> None:
    scene = plain_job.injection("checkpoint_missing", "n2")
    plain_job.cluster.kill("n2", None, 9)
    with pytest.raises(ClusterError, match="n2: no worker is running there"):
        FAULTS["checkpoint_missing"].inject(scene)
    assert len(list(plain_job.checkpoints_folder.glob("step-00000020-g00000001/*"))) == 3
    scene.checkpoints = "empty"
    with pytest.raises(ClusterError, match="no checkpoint yet"):
        FAULTS["checkpoint_missing"].inject(scene)


@pytest.mark.parametrize("key", CHECKPOINT_FAULTS)
def test_damage_without_effect_did_not_work(plain_job: Job, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = plain_job.injection(key, kill=0)
    monkeypatch.setattr(os, "truncate", lambda *_: None)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    monkeypatch.setattr(Path, "write_text", lambda *_: None)
    if key == "checkpoint_bitflip":
        idle = checkpoints.of_a_part(key, "", lambda *_: None)
        assert works(idle, scene, idle.inject(scene)) is False
    else:
        assert works(FAULTS[key], scene, FAULTS[key].inject(scene)) is False


def test_damage_whose_reader_lives_on_did_not_work(plain_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault, "GONE_S", 0.05)
    scene = plain_job.injection("checkpoint_bitflip", cluster=Idle(plain_job.cluster))
    assert works(FAULTS["checkpoint_bitflip"], scene, FAULTS["checkpoint_bitflip"].inject(scene)) is False
