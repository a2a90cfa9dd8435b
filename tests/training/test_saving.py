"""Saving behind training's back: what it waits for, what it survives, what it tells."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from proving_ground.training.checkpoints import checkpoint, saving
from proving_ground.training.checkpoints.checkpoint import SupersededError
from proving_ground.training.checkpoints.saving import Saver, Snapshot, young_daly_s
from proving_ground.training.checkpoints.stores import Folder
from proving_ground.training.config import Config, ConfigError, from_dict
from proving_ground.training.device.precision import Precision
from proving_ground.training.exchange.updates import EveryStep

SLOW_S = 0.3


class Told:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]


@pytest.fixture
def told() -> Told:
    return Told()


def config_of(folder: Path, **keys: Any) -> Config:
    return from_dict({"model": "stocks", "checkpoint_dir": str(folder), **keys})


def job_of(config: Config, **more: Any) -> Any:
    """As much of a job as a saver looks at: one layer with momentum."""
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(30)).sum().backward()
    optimizer.step()
    alone = SimpleNamespace(rank=0, size=1, gather=lambda value: [value], from_rank=lambda value: value)
    job = SimpleNamespace(
        config=config, world=alone, updates=EveryStep(), precision=Precision(config, torch.device("cpu")),
        model=SimpleNamespace(module=model), optimizer=optimizer, step=0, steps=1000,
        epoch=0, best=None, metrics={}, **more,
    )  # fmt: skip
    job.due = lambda every: every > 0 and job.step % every == 0
    return job


def saver_of(config: Config, told: Told, generation: int = 1) -> Saver:
    return Saver(config, told, generation, lambda _phase, _step: None)  # type: ignore[arg-type]


def slow_writes(monkeypatch: pytest.MonkeyPatch, seconds: float = SLOW_S) -> None:
    write = checkpoint.write_part

    def slow(*given: Any) -> Any:
        time.sleep(seconds)
        return write(*given)

    monkeypatch.setattr(checkpoint, "write_part", slow)


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, goes_on = checkpoint.write_part, threading.Event()

    def waits(*given: Any) -> Any:
        assert goes_on.wait(30), "training waits for what is written"
        return write(*given)

    monkeypatch.setattr(checkpoint, "write_part", waits)
    config = config_of(tmp_path, checkpoint_every=1)
    job = job_of(config)
    with saver_of(config, told) as saver:
        job.step = 1
        saver.save(job, stopped=False)
        assert told.events == [], "nothing is told before it is durable"
        with torch.no_grad():
            before = job.model.module.weight.clone()
            job.model.module.weight.add_(1)  # the next step
        goes_on.set()
    (event,) = told.named("checkpoint")
    assert event["block_s"] < event["durable_s"]
    store = Folder(tmp_path)
    loaded = checkpoint.load(store, Path(event["path"]).name)
    assert torch.equal(loaded.parts["model"]["weight"], before), "what was saved is the state of its step"
    assert (event["generation"], event["sha256"]) == (1, loaded.sha256)


def test_waiting_for_the_one_before_counts_as_blocking(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_writes(monkeypatch)
    monkeypatch.setattr(saving, "BUSY_S", 60)
    config = config_of(tmp_path, checkpoint_every=1)
    job = job_of(config)
    with saver_of(config, told) as saver:
        for job.step in (1, 2):
            saver.save(job, stopped=False)
    first, second = told.named("checkpoint")
    assert second["block_s"] > max(SLOW_S, first["block_s"])


def test_on_a_disk_too_slow_checkpoints_are_left_out_but_not_the_last(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks are not kept waiting until they take the first for dead."""
    slow_writes(monkeypatch)
    monkeypatch.setattr(saving, "BUSY_S", 0.01)
    config = config_of(tmp_path, checkpoint_every=1)
    job = job_of(config)
    job.steps = 3
    with saver_of(config, told) as saver:
        for job.step in (1, 2, 3):
            saver.save(job, stopped=False)
    assert [event["step"] for event in told.named("checkpoint")] == [1, 3]
    (problem,) = told.named("error")
    assert problem["fatal"] is False
    assert "step 2 left out: the one before is still being written; training goes on" in problem["message"]


def test_so_does_gathering_the_ranks_random_states(tmp_path: Path, told: Told) -> None:
    def gather(value: object) -> list[object]:
        time.sleep(SLOW_S)
        return [value]

    config = config_of(tmp_path, checkpoint_every=1)
    job = job_of(config)
    job.world.gather = gather
    with saver_of(config, told) as saver:
        job.step = 1
        saver.save(job, stopped=False)
    assert told.named("checkpoint")[0]["block_s"] > SLOW_S


def test_synchronous_saving_blocks_until_it_is_durable(tmp_path: Path, told: Told) -> None:
    config = config_of(tmp_path, checkpoint_every=1, checkpoint_async=False)
    job = job_of(config)
    saver = saver_of(config, told)
    job.step = 1
    saver.save(job, stopped=False)
    (event,) = told.named("checkpoint")
    assert event["block_s"] == event["durable_s"]


@pytest.mark.parametrize("error", [OSError(28, "No space left"), OSError(5, "I/O error"), OSError(30, "Read-only")])
def test_a_failed_write_is_told_and_survived(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, error: OSError, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    config = config_of(tmp_path, checkpoint_every=1)
    job = job_of(config)
    with saver_of(config, told) as saver:
        job.step = 1
        saver.save(job, stopped=False)
        saver._land()
        job.step = 2
        with monkeypatch.context() as broken:
            broken.setattr(checkpoint, "write_part", fail)
            saver.save(job, stopped=False)
            saver._land()
        assert checkpoint.newest_first(Folder(tmp_path)) == ["step-00000001-g00000001"]
        job.step = 3
        saver.save(job, stopped=False)
    assert [event["step"] for event in told.named("checkpoint")] == [1, 3]
    (problem,) = told.named("error")
    assert problem["fatal"] is False
    assert problem["message"] == f"checkpoint of step 2 not saved: {tmp_path}: {error.strerror}; training goes on"
    assert problem["message"] in capsys.readouterr().err


def save_once(saver: Saver, job: Any) -> None:
    """Save after the first step, in a training that ends then."""
    with saver:
        job.step = 1
        saver.save(job, stopped=False)


def test_a_defect_in_the_writer_is_no_full_disk(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "write_part", lambda *_: 1 / 0)
    config = config_of(tmp_path, checkpoint_every=1)
    with pytest.raises(ZeroDivisionError):
        save_once(saver_of(config, told), job_of(config))


def test_a_superseded_incarnation_stops_and_has_written_nothing(tmp_path: Path, told: Told) -> None:
    store = Folder(tmp_path)
    old = checkpoint.claim_generation(store)
    checkpoint.claim_generation(store)
    config = config_of(tmp_path, checkpoint_every=1)
    with pytest.raises(SupersededError, match="generation 2 of the job has taken over"):
        save_once(saver_of(config, told, old), job_of(config))
    assert (store.names(), told.events) == ([], [])


def test_a_live_job_of_local_updates_saves_one_copy_of_the_optimizer(tmp_path: Path, told: Told) -> None:
    """Beside it nothing that training goes on to change while the checkpoint is written."""
    config = config_of(tmp_path, checkpoint_every=1)
    job = job_of(config)
    job.updates = SimpleNamespace(outer=None, alone=True)
    with saver_of(config, told) as saver:
        saver.renew(1)
        save_once(saver, job)
    (event,) = told.named("checkpoint")
    parts = checkpoint.load(Folder(tmp_path), Path(event["path"]).name).parts
    assert "inner" not in parts["training"]
    assert parts["optimizer"]["state"]


def fail_while_saving(saver: Saver, job: Any) -> None:
    """A training that fails right after it has begun to save."""
    with saver:
        job.step = 1
        saver.save(job, stopped=False)
        raise RuntimeError("a peer is gone")


def test_a_training_that_failed_waits_for_the_writer_but_not_long(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_writes(monkeypatch)
    config = config_of(tmp_path, checkpoint_every=1)
    saver = saver_of(config, told)
    monkeypatch.setattr(saving, "PATIENCE_S", 0.01)
    with pytest.raises(RuntimeError, match="a peer is gone"):
        fail_while_saving(saver, job_of(config))
    assert told.events == []
    saver._land()
    assert len(told.named("checkpoint")) == 1


def test_ranks_other_than_the_first_write_nothing(tmp_path: Path, told: Told) -> None:
    config = config_of(tmp_path, checkpoint_every=1)
    job = job_of(config)
    job.world = SimpleNamespace(rank=1, size=2, gather=lambda value: [value, value])
    with saver_of(config, told) as saver:
        for job.step in (1, 2):
            saver.save(job, stopped=False)
    assert list(tmp_path.iterdir()) == []


def test_copies_reuse_their_memory() -> None:
    snapshot = Snapshot()
    state: dict[str, Any] = {"w": torch.ones(10), "more": [{"step": torch.tensor(3)}, (1, "text")]}
    snapshot.warm(state)
    pool = ThreadPoolExecutor(1)
    first = snapshot.take(state, pool)
    where = first["w"].data_ptr()
    assert torch.equal(first["w"], state["w"])
    assert first["more"][0]["step"] == 3
    assert first["more"][1] == (1, "text")
    state["w"] += 1
    second = snapshot.take(state, pool)
    assert second["w"].data_ptr() == where
    assert torch.equal(second["w"], torch.full((10,), 2.0))
    grown = snapshot.take({"w": torch.ones(20)}, pool)
    assert grown["w"].shape == (20,)


def test_the_interval_of_young_and_daly() -> None:
    assert young_daly_s(0.05, 1000) == pytest.approx(10)


Clock = Callable[[float], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time passes as told."""
    now = [1000.0]
    monkeypatch.setattr("proving_ground.training.checkpoints.saving.time.monotonic", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def saved_steps(config: Config, told: Told, clock: Clock, steps: int) -> list[int]:
    """The steps with a checkpoint in a training of 0.5 s a step where a copy takes 0.2 s."""
    job = job_of(config)

    def gather(value: object) -> list[object]:
        clock(0.2)
        return [value]

    job.world.gather = gather
    with saver_of(config, told) as saver:
        for job.step in range(1, steps + 1):
            clock(0.5)
            saver.save(job, stopped=False)
    return [event["step"] for event in told.named("checkpoint")]


def test_every_so_many_seconds(tmp_path: Path, told: Told, clock: Clock) -> None:
    config = config_of(tmp_path, checkpoint_interval_s=10, checkpoint_async=False)
    steps = saved_steps(config, told, clock, 100)
    assert steps[0] == saving.FIRST_STEPS + 1
    assert {after - before for before, after in pairwise(steps[1:])} <= {19, 20}


def test_by_the_fault_rate(tmp_path: Path, told: Told, clock: Clock) -> None:
    """sqrt(2 · 0.2 s · 250 s) = 10 s."""
    config = config_of(tmp_path, mtbf_s=250, checkpoint_async=False)
    steps = saved_steps(config, told, clock, 100)
    assert steps[:2] == [saving.FIRST_STEPS + 1, 2 * saving.FIRST_STEPS + 1]
    assert {after - before for before, after in pairwise(steps[1:])} <= {19, 20}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"mtbf_s": 5.0}, "mtbf_s = 5.0 needs a checkpoint_dir"),
        ({"checkpoint_dir": "x", "mtbf_s": 5, "checkpoint_every": 2}, "checkpoint_every and mtbf_s: each says when"),
    ],
)
def test_contradictions_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_dict(keys)


def test_resuming_tells_what_was_loaded_and_what_was_passed_over(tmp_path: Path, told: Told) -> None:
    config = config_of(tmp_path, checkpoint_every=1)
    job = job_of(config, events=told, tell=lambda _line: None)
    with saver_of(config, told) as saver:
        for job.step in (1, 2):
            saver.save(job, stopped=False)
    good, bad = told.named("checkpoint")
    (Path(bad["path"]) / "model.pt").write_bytes(b"")
    again = job_of(config, events=told, tell=lambda _line: None)
    saving.resume(again)
    (resumed,), (moved,) = told.named("resume"), told.named("quarantine")
    assert (resumed["step"], resumed["path"], resumed["sha256"]) == (1, good["path"], good["sha256"])
    assert (resumed["of_generation"], resumed["read_s"] > 0) == (1, True)
    assert moved["path"] == str(tmp_path / "quarantine" / Path(bad["path"]).name)
    assert "model.pt: 0 of" in moved["why"]
    assert torch.equal(again.model.module.weight, job.model.module.weight)
    assert again.step == 1
