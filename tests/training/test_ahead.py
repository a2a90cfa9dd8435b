"""Reading ahead of the step: the same training to the bit, each sample once, whatever happens to steps and members."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proving_ground.training import loop
from proving_ground.training.__main__ import main
from proving_ground.training.config import Config, ConfigError, from_dict
from proving_ground.training.data import ahead, order
from proving_ground.training.data.ahead import Ahead
from proving_ground.training.data.mapped import DataError
from proving_ground.training.data.order import Rows
from proving_ground.training.events import EventWriter
from proving_ground.training.exchange.communication import Exchange, World
from proving_ground.training.loop import Job, Result, train
from proving_ground.training.models.digits import Digits
from proving_ground.training.models.paced import Paced
from proving_ground.training.models.task import Batch, task_of
from tests.validations import defects
from tests.validations.defects import DEFECTS

from .ranks import sets, start
from .test_paced import profile  # noqa: F401 - a fixture

AHEAD = {"prefetch": 3, "loaders": 2}
SHORT = {"model": "digits", "steps": 8, "global_batch": 24, "eval_every": 3, "optimizer": "adamw", "lr": 0.01}


def trained(folder: Path, **keys: object) -> tuple[Result, list[dict[str, Any]]]:
    """What a short job ended with, and its `step` events."""
    file = folder / "events.jsonl"
    file.unlink(missing_ok=True)
    events = EventWriter(file)
    result = train(from_dict({**SHORT, "ledger": True, **keys}), events, tell=lambda _: None)
    events.close()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return result, [it for it in records if it["event"] == "step"]


def ledger(steps: list[dict[str, Any]]) -> list[list[int]]:
    """The samples of each step."""
    return [it["rows"] for it in steps]


def due(**keys: object) -> list[list[int]]:
    """The samples that each step must have."""
    config = from_dict({**SHORT, **keys})
    rows, carry = task_of(config.model)(config).rows, config.last_batch == "carry"
    return [
        order.global_batch_rows(rows, config.global_batch, config.seed, step, carry=carry).tolist()
        for step in range(config.steps)
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"dropout": 0.3},
        {"accumulate": 3, "dropout": 0.3},
        {"reduction": "exact", "shards": 6, "dropout": 0.3},
        {"updates": "diloco", "sync_every": 4, "eval_every": 4, "dropout": 0.3},
        {"model": "stocks", "global_batch": 1500, "last_batch": "carry"},
        {"model": "stocks", "global_batch": 1500},
    ],
)
def test_the_training_is_the_same_to_the_bit(tmp_path: Path, keys: dict[str, object]) -> None:
    plain, steps = trained(tmp_path, **keys, prefetch=0)
    early, early_steps = trained(tmp_path, **keys, **AHEAD)
    assert early == plain
    assert len(plain.parameters_sha256) == 64
    assert ledger(early_steps) == ledger(steps) == due(**keys)
    assert [it["loss"] for it in early_steps] == [it["loss"] for it in steps]


def test_two_ranks_end_with_the_same_bits_and_each_sample_once(tmp_path: Path) -> None:
    hashes = set()
    for name, keys in {"plain": {"prefetch": 0}, "ahead": AHEAD}.items():
        job = start(tmp_path / name, 2, sets(**(SHORT | {"dropout": 0.3, "ledger": True, "eval_every": -1} | keys)))
        assert job.wait() == [0, 0], job.printed()
        hashes |= {job.events(rank, "end")[0]["parameters_sha256"] for rank in (0, 1)}
        both = [ledger(job.events(rank, "step")) for rank in (0, 1)]
        assert [mine + its for mine, its in zip(*both, strict=True)] == due()
    assert len(hashes) == 1


@pytest.mark.parametrize("loaders", [1, 2])
def test_a_resumed_run_ends_as_one_that_was_not_stopped(tmp_path: Path, loaders: int) -> None:
    whole, _ = trained(tmp_path, prefetch=0)
    kept = {"checkpoint_dir": str(tmp_path / "saved"), "prefetch": 2, "loaders": loaders}
    trained(tmp_path, **kept, steps=5)
    again, steps = trained(tmp_path, **kept)
    assert again.parameters_sha256 == whole.parameters_sha256
    assert ledger(steps) == due()[5:]


# --- any schedule of members and steps ------------------------------------------------------------------------------


@dataclass
class Place:
    """What the loader asks of a job, and nothing else; it can be a member of one world after another."""

    config: Config
    task: Any
    step: int = 0
    steps: int = 40
    generation: int = 1
    world: World = field(default_factory=lambda: World(0, 1, torch.device("cpu"), "gloo"))
    exchange: Exchange = field(default_factory=lambda: Exchange(None, casting=False, micro_batches=2))
    carry: bool = False

    def meet(self, rank: int, size: int) -> None:
        """Become a member of another world."""
        self.generation, self.world = self.generation + 1, replace(self.world, rank=rank, size=size)


class Numbers:
    """A task whose batches are the rows themselves."""

    rows = 1000

    def batch(self, split: str, rows: Rows) -> Batch:
        assert split == "train"
        return Batch(torch.from_numpy(rows.copy()), torch.from_numpy(rows.copy()), rows)


def one_step(loader: Ahead, place: Place) -> None:
    """Read a step as the loop does; what comes must be what a loader that reads nothing ahead would return."""
    wanted, pieces = loader.begin(cast("Job", place))
    assert wanted.tolist() == order.global_batch_rows(1000, 32, 5, place.step).tolist()
    got: list[int] = []
    for number, (_, rows) in enumerate(pieces or [(0, wanted[:1])], 1):
        batch = loader.batch(number, rows)
        assert batch.rows.tolist() == batch.inputs.tolist() == batch.targets.tolist()
        got += batch.rows.tolist()
    share = order.share(wanted, place.world.rank, place.world.size)
    assert got == (share.tolist() or wanted[:1].tolist())


EVENTS = st.lists(
    st.one_of(
        st.just(("step", 0, 0)),
        st.just(("again", 0, 0)),  # a step that failed: the survivors make it again
        st.tuples(st.just("back"), st.integers(1, 5), st.just(0)),  # a round of local updates that is undone
        st.integers(1, 4).flatmap(lambda size: st.tuples(st.just("meet"), st.integers(0, size - 1), st.just(size))),
    ),
    max_size=30,
)


def play(events: list[tuple[str, int, int]], prefetch: int, loaders: int) -> None:
    """Steps, failures and changes of membership in this order."""
    config = from_dict({"global_batch": 32, "seed": 5, "prefetch": prefetch, "loaders": loaders if prefetch else 1})
    place = Place(config, Numbers())
    with Ahead(config, place.task, place.world.device) as loader:
        one_step(loader, place)
        for kind, first, second in events:
            if kind == "meet":
                place.meet(first, second)
            elif kind != "again":
                place.step = max(0, place.step - first) if kind == "back" else place.step + 1
            if place.step < place.steps:
                one_step(loader, place)


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, prefetch=st.integers(0, 5), loaders=st.integers(1, 3))
def test_whatever_happens_a_step_gets_its_own_samples(
    events: list[tuple[str, int, int]], prefetch: int, loaders: int
) -> None:
    play(events, prefetch, loaders)


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of the catalogue that acts from the first step, and is gone after the test."""

    def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
        before = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **more: around(before, *given, **more))

    monkeypatch.setattr(defects, "SEEN", {"step": 0})
    monkeypatch.setattr(defects, "wrap", wrap)


class AtOnce(ThreadPoolExecutor):
    """Reads when it is asked to: what was read ahead is there, however busy the machine is."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


LOADERS = ["ahead_one_batch_late", "ahead_skips_a_batch", "ahead_for_another_membership"]


@pytest.mark.usefixtures("unpatched")
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_that_serves_another_batch_is_caught(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "ThreadPoolExecutor", AtOnce)
    DEFECTS[name].put()
    steps = [("step", 0, 0)] * 4
    with pytest.raises(AssertionError):
        play([*steps, ("meet", 0, 2), *steps, ("meet", 1, 3), *steps], prefetch=3, loaders=1)
    assert defects.ACTED in capfd.readouterr().out


@pytest.mark.usefixtures("unpatched")
@pytest.mark.parametrize("name", LOADERS[:2])
def test_its_ledger_and_its_weights_are_others(name: str, tmp_path: Path) -> None:
    sound, _ = trained(tmp_path, **AHEAD)
    DEFECTS[name].put()
    wrong, steps = trained(tmp_path, **AHEAD)
    assert wrong.parameters_sha256 != sound.parameters_sha256
    assert ledger(steps) != due()


# --- what fails, and what ends --------------------------------------------------------------------------------------


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(ahead.THREADS)]


@pytest.mark.parametrize(("error", "status"), [(OSError(5, "Input/output error", "x.npy"), 1), (DataError("bad"), 2)])
def test_an_error_surfaces_at_the_step_that_needs_the_batch(
    error: Exception, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is met two steps before, and the steps before are made; the words are those of a loader in the step."""
    read, fifth = Digits.batch, due()[4]

    def failing(self: Digits, split: str, rows: Rows) -> Batch:
        if rows.tolist() == fifth:
            raise error
        return read(self, split, rows)

    monkeypatch.setattr(Digits, "batch", failing)
    told = []
    for prefetch in (0, 3):
        file = tmp_path / f"{prefetch}.jsonl"
        monkeypatch.setenv("PROVING_GROUND_EVENTS", str(file))
        keys = SHORT | {"eval_every": -1, "prefetch": prefetch}
        assert main(["run", *sets(**keys)]) == status
        events = [json.loads(line) for line in file.read_text().splitlines()]
        told.append((capsys.readouterr().err, [it["step"] for it in events if it["event"] == "step"]))
    assert told[0] == told[1]
    assert told[0][1] == [1, 2, 3, 4]
    assert told[0][0].count("\n") == 1


def test_threads_end_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    config = from_dict({**SHORT, **AHEAD})
    seen: list[str] = []
    clip = loop.clip

    def look(job: Job) -> float | None:
        seen.extend(reading_threads())
        return clip(job)

    monkeypatch.setattr(loop, "clip", look)
    train(config, tell=lambda _: None)
    assert seen
    assert reading_threads() == []
    monkeypatch.setattr(loop, "clip", lambda _job: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(config, tell=lambda _: None)
    end = time.monotonic() + 30
    while reading_threads():  # a failed training does not wait for the batch that is being read
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_training_that_is_asked_to_stop_ends_with_its_threads(tmp_path: Path) -> None:
    job = start(tmp_path, 2, sets(**(SHORT | {"steps": 100_000, "eval_every": -1} | AHEAD)))
    job.until(3)
    for process in job.processes:
        process.terminate()
    assert job.wait() == [0, 0], job.printed()
    assert [job.events(rank, "end")[0]["reason"] for rank in (0, 1)] == ["stopped", "stopped"]


def test_nothing_keeps_the_model_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """DDP must be gone before its group is: the loader is part of no cycle that waits for the collector of garbage."""
    made: list[weakref.ref[Any]] = []
    prepare = loop.prepare

    def prepared(*given: Any) -> Job:
        job = prepare(*given)
        job.exchange.before_send = lambda: None  # it knows the job, which knows it
        made.append(weakref.ref(job.model))
        return job

    monkeypatch.setattr(loop, "prepare", prepared)
    gc.collect()
    gc.disable()
    try:
        train(from_dict({**SHORT, **AHEAD}), tell=lambda _: None)
        assert made[0]() is None
    finally:
        gc.enable()


# --- what is told ---------------------------------------------------------------------------------------------------


def paced_steps(folder: Path, profile: Path, **keys: object) -> list[dict[str, Any]]:  # noqa: F811 - the fixture
    """The steps of a paced job of 120 ms compute with a store of 50 ms, without the first two."""
    asked = {"model": "paced", "profile": str(profile), "steps": 8, "global_batch": 4, "store_s": 0.05}
    return trained(folder, **(asked | keys))[1][2:]


def test_waiting_for_data_and_reading_them_are_told_apart(tmp_path: Path, profile: Path) -> None:  # noqa: F811
    inside = paced_steps(tmp_path, profile, prefetch=0)
    assert all(it["data_s"] >= it["read_s"] >= 0.05 for it in inside)
    early = paced_steps(tmp_path, profile, prefetch=2)
    assert all(it["read_s"] >= 0.05 for it in early)
    assert min(it["data_s"] for it in early) < 0.01


def test_a_store_that_is_slower_than_training_is_still_waited_for(tmp_path: Path, profile: Path) -> None:  # noqa: F811
    steps = paced_steps(tmp_path, profile, store_s=0.3, steps=6, prefetch=2, loaders=3)
    assert (steps[-1]["t"] - steps[0]["t"]) / (len(steps) - 1) > 0.28
    assert max(it["data_s"] for it in steps) > 0.1


def test_a_rank_s_threads_share_the_one_store(profile: Path) -> None:  # noqa: F811 - the fixture
    config = from_dict({"model": "paced", "profile": str(profile), "store_s": 0.02, "prefetch": 4, "loaders": 4})
    task, begin = Paced(config), time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: task.batch("train", np.arange(4)), range(4)))
    assert time.monotonic() - begin >= 0.08


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"prefetch": -1}, "prefetch = -1: must be 0 to 64"),
        ({"prefetch": 65}, "prefetch = 65: must be 0 to 64"),
        ({"prefetch": 1.5}, "prefetch = 1.5"),
        ({"loaders": 0}, "loaders = 0: must be 1 to 64"),
        ({"prefetch": 0, "loaders": 2}, "loaders = 2 needs prefetch of at least 1"),
    ],
)
def test_impossible_keys_are_refused(keys: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as error:
        from_dict(keys)
    assert words in str(error.value)
    assert main(["run", *sets(**keys)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
