"""The measuring programs measure what they say, and refuse what makes no sense."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from proving_ground.training.__main__ import main
from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.checkpoints.stores import open_store
from proving_ground.training.config import ConfigError
from proving_ground.training.device import resident
from proving_ground.training.events import EVENTS_VARIABLE, check_event
from proving_ground.training.measuring import collectives, loading, memory
from proving_ground.training.measuring.programs import PROGRAMS, Collectives, Loading, from_table
from tests.training import ranks

Event = dict[str, Any]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a program with a settings file; (exit status, its events)."""
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv(EVENTS_VARIABLE, str(file))
    monkeypatch.setenv(loading.DISK_VARIABLE, str(tmp_path))

    def tell(program: str, **keys: object) -> tuple[int, list[Event]]:
        config = tmp_path / "settings.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
        status = main([program, "--config", str(config)])
        return status, [check_event(json.loads(line)) for line in file.read_text().splitlines()]

    return tell


def values(events: list[Event], name: str) -> list[float]:
    return [event["value"] for event in events if event["event"] == "measure" and event["name"] == name]


def steps(events: list[Event]) -> list[int]:
    return [event["step"] for event in events if event["event"] == "step"]


@pytest.mark.parametrize(
    ("program", "table", "words"),
    [
        ("collectives", {"size": 4}, "unknown key 'size'; allowed: rounds, ops"),
        ("collectives", {"ops": ["scatter"]}, "must be one of all_reduce, all_gather"),
        ("collectives", {"ops": []}, "must be a list with at least one value"),
        ("collectives", {"sizes": [1]}, "sizes, item 1 = 1: must be at least 4"),
        ("collectives", {"timeout_s": 0}, "must be above 0"),
        ("loading", {"shard_mb": 512}, "a sample must fit into a shard, a shard into the data"),
        ("storing", {"sizes_mb": ["x"]}, "must be a whole number"),
        ("memory", {"models": ["alexnet"]}, "must be one of resnet18"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(program: str, table: Event, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_table(program, table, "settings")


def test_a_program_says_what_is_wrong_and_ends_with_2(told: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, events = told("loading", address="ftp://somewhere")
    assert status == 2
    assert "ftp://…: must be a path, or a URL" in capsys.readouterr().err
    assert events[-1]["event"] == "error"


def test_every_program_has_its_defaults() -> None:
    for name, kind in PROGRAMS.items():
        assert from_table(name, {}, name) == kind()


def test_bus_bandwidth_is_nccl_tests() -> None:
    """Doc/PERFORMANCE.md of nccl-tests: all-reduce 2(n-1)/n, all-gather and reduce-scatter (n-1)/n, broadcast 1."""
    factors = {op: factor(4) for op, factor in collectives.BUS_FACTOR.items()}
    assert factors == {"all_reduce": 1.5, "all_gather": 0.75, "reduce_scatter": 0.75, "broadcast": 1.0}
    assert set(factors) == set(Collectives().ops)


def test_two_ranks_time_every_operation_at_every_size(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("rounds = 2\nsizes = [4000, 1000000]\n")
    job = ranks.start(tmp_path / "job", 2, ["--config", str(config)], command="collectives")
    assert job.wait() == [0, 0], job.printed()
    every = job.events(name="collective")
    assert len(every) == 2 * 4 * 2
    assert {event["bytes"] for event in every} == {4000, 1000000}
    for mine, other in zip(every, job.events(1, "collective"), strict=True):
        assert mine["seconds"] == other["seconds"] == max(mine["own_s"], other["own_s"])
        assert mine["busbw"] == pytest.approx(mine["algbw"] * collectives.BUS_FACTOR[mine["op"]](2))
        assert mine["algbw"] == pytest.approx(mine["bytes"] / mine["seconds"])
    assert steps(job.events()) == [1, 2]


def test_loading_reads_all_data_in_bounded_memory(told: Any) -> None:
    status, events = told("loading", rounds=2, data_mb=64, shard_mb=4, sample_kb=64, prefetch=1)
    assert status == 0
    assert values(events, "load_samples") == [1024.0, 1024.0]
    assert steps(events) == [1, 2]
    if resident.resident_bytes() is not None:
        assert max(values(events, "load_memory")) < 40, "a few shards of 4 MiB, never the 64 MiB of the data"


HOARDER = """
import sys
from proving_ground.training.measuring import loading
from proving_ground.training.__main__ import main

kept, fetch = [], loading.fetch

def hoard(store, number):
    kept.append(fetch(store, number))
    return kept[-1]

loading.fetch = hoard
sys.exit(main(["loading", "--config", sys.argv[1]]))
"""


def test_a_reader_that_keeps_everything_is_seen(tmp_path: Path) -> None:
    """In a process of its own: a long one has freed memory at hand, and what it takes from that is no growth."""
    if resident.resident_bytes() is None:
        pytest.skip("no /proc/self/status here: memory cannot be measured")
    file, config = tmp_path / "events.jsonl", tmp_path / "settings.toml"
    config.write_text("rounds = 1\ndata_mb = 64\nshard_mb = 4\nsample_kb = 64\nprefetch = 1\n")
    env = {**os.environ, EVENTS_VARIABLE: str(file), loading.DISK_VARIABLE: str(tmp_path)}
    subprocess.run([sys.executable, "-c", HOARDER, str(config)], env=env, check=True, stdin=subprocess.DEVNULL)
    assert max(values([json.loads(line) for line in file.read_text().splitlines()], "load_memory")) > 55


def test_shards_that_are_there_are_used_and_order_changes(tmp_path: Path) -> None:
    store, settings = open_store(str(tmp_path)), Loading(data_mb=2, shard_mb=1, sample_kb=512, batch=1, prefetch=0)
    loading.prepare(store, 2, 2**20)
    before = (tmp_path / loading.NAME).stat().st_ino
    loading.prepare(store, 2, 2**20)
    assert (tmp_path / loading.NAME).stat().st_ino == before
    orders = {
        tuple(int(batch[0, 0]) for batch in loading.batches(store, order, settings)) for order in ([0, 1], [1, 0])
    }
    assert len(orders) == 2


def test_fetching_ahead_keeps_the_order() -> None:
    assert [int(it) for it in loading.ahead(lambda number: b"%d" % number, [3, 1, 2], 2)] == [3, 1, 2]


def test_storing_saves_and_loads_every_size(told: Any) -> None:
    status, events = told("storing", rounds=2, sizes_mb=[1, 9])
    assert status == 0
    for name in ("checkpoint_block", "checkpoint_save", "checkpoint_load"):
        assert len(values(events, name)) == 4
        assert min(values(events, name)) > 0
    assert {event["where"]["size_mb"] for event in events if event["event"] == "measure"} == {1, 9}


def test_a_checkpoint_that_differs_is_told(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    load = checkpoint.load

    def damaged(*given: Any) -> Any:
        found = load(*given)
        found.parts["model"]["layer0"][0] = 7
        return found

    monkeypatch.setattr(checkpoint, "load", damaged)
    status, events = told("storing", rounds=1, sizes_mb=[1])
    assert status == 1
    assert "differs from what was saved" in events[-1]["message"]


def test_a_bigger_batch_has_a_higher_peak() -> None:
    small, large = (memory.in_a_process("resnet18", batch, 1, torch.device("cpu")) / 1e6 for batch in (1, 4))
    assert 11.7 * 4 < small < large, "at least the weights; activations grow with the batch"


def test_out_of_memory_is_told_and_passed_over(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_name: str, batch: int, *_: object) -> int:
        if batch == 4:
            raise MemoryError
        return 10**6

    monkeypatch.setattr(memory, "in_a_process", killed)
    status, events = told("memory", batches=[1, 4], rounds=1, device="cpu")
    assert status == 0
    assert values(events, "memory_peak") == [1.0]
    assert [event["message"] for event in events if event["event"] == "error"] == ["resnet18, batch 4: out of memory"]


@pytest.mark.parametrize(("code", "kind"), [("os.kill(os.getpid(), 9)", MemoryError), ("sys.exit(9)", RuntimeError)])
def test_a_process_that_ends_badly_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception]
) -> None:
    script = ["-c", f"import os, sys; {code}"]
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **how: run([command[0], *script], **how))
    with pytest.raises(kind):
        memory.in_a_process("resnet18", 1, 1, torch.device("cpu"))


def test_a_plain_loop_ends_by_itself_in_ddp_too(tmp_path: Path) -> None:
    """In a process of its own, as DDP that outlives its process group can keep one from ending."""
    config = tmp_path / "plain.toml"
    config.write_text('model = "vit"\nbatch = 2\nsteps = 1\nrounds = 2\nddp = true\ndevice = "cpu"\n')
    started = ranks.start(tmp_path / "ranks", 1, ["--config", str(config)], command="plain")
    assert started.wait() == [0], started.printed()
    assert [it["where"]["ddp"] for it in started.events(0, "measure")] == [1, 1]
