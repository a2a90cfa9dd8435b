"""Trainers that people have, as they come: each measured on two nodes, and got over a worker's death."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.clusters import choose
from proving_ground.bench.run import run
from proving_ground.bench.rundir import Record, RunDir
from proving_ground.bench.spec import Suite, load_suite, suite_from
from proving_ground.training.events import EVENTS_VARIABLE

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "bench" / "examples"
TRAINERS = ("lightning", "transformers", "accelerate")
PROVEN = ("happened", "healed", "trained_on")
SAME = ("same_training", "exactly_once", "intact_only", "ranks_agree")


def suite(trainer: str, steps: int, **case: Any) -> Suite:
    words = ["$PROVING_GROUND_STEPS", "$PROVING_GROUND_BATCH", "$PROVING_GROUND_VOLUME/$PROVING_GROUND_TRIAL"]
    command = {"argv": ["python", str(EXAMPLES / f"{trainer}_trainer.py"), *words]}
    table = {
        "name": trainer, "workload": "command", "batch_per_node": 16, "steps": steps, "warmup_steps": 5,
        "estimated_step_s": 0.001, "startup_s": 180, "command": command, **case,
    }  # fmt: skip
    made = {"title": "Foreign", "nodes": [2], "repeats": 1, "volume_mb": 256, "cases": [table]}
    return suite_from(made, where="test", name=trainer)


def steps_of(store: RunDir) -> list[Record]:
    return [it for it in rundir.read_history(store) if it["event"] == "step"]


def has_throughput(store: RunDir) -> bool:
    """Whether a report comes of it, with a figure."""
    done = subprocess.run(
        [sys.executable, "-m", "proving_ground.reports", str(store.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return any(it["name"] == "throughput" and it["median"] > 0 for it in store.read("results")["figures"])


def broken(file: Path, runs: Path) -> RunDir:
    """What a suite of faults left, which failed nothing."""
    words = ["--runs", str(runs), "run", "--suite", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "proving_ground.chaos", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return rundir.find(runs, file.stem)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_it_is_measured_on_two_nodes(trainer: str, tmp_path: Path) -> None:
    store = run(suite(trainer, 30), choose("local")[0], tmp_path)
    steps = steps_of(store)
    assert {it["source"]: 0 for it in steps} == {"n1.0": 0, "n2.0": 0}
    assert {it["step"] for it in steps} == set(range(1, 31))
    assert {len(it["rows"]) for it in steps} == {16}
    assert has_throughput(store)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_it_is_got_over_a_worker_s_death_and_is_the_same_training(trainer: str, tmp_path: Path) -> None:
    """To the last bit, every sample once, as an undisturbed twin: with the callback, or a watched optimizer, alone."""
    file = tmp_path / "broken.toml"
    command = suite(trainer, 100_000).cases[0].command["argv"]
    file.write_text(
        f'title = "Broken"\nnodes = [2]\nrepeats = 1\nvolume_mb = 256\n[[case]]\nname = "{trainer}"\n'
        'workload = "command"\nmechanism = "restart"\nbatch_per_node = 16\nsteps = 100000\nwarmup_steps = 5\n'
        "estimated_step_s = 0.0005\nstartup_s = 180\ntwins = [2]\n"
        f'faults = [{{ kind = "worker_kill", after_steps = 40 }}]\n[case.command]\nargv = {command}\n'
    )
    store = broken(file, tmp_path / "runs")
    (trial,) = store.read("results")["trials"]
    assert trial["outcome"] == "recovered", trial
    assert {name: trial["verdicts"][name] for name in (*PROVEN, *SAME)} == dict.fromkeys((*PROVEN, *SAME), "pass")
    events = list(rundir.read_history(store))
    (killed,) = [it for it in events if it["event"] == "fault_end"]
    after = next(it["step"] for it in events if it["event"] == "step" and it["t"] > killed["t"] + 0.5)
    assert after > 1, "it went on from its checkpoint"


IN_A_THREAD = """
import sys, time
import lightning.pytorch as pl
import pg_events
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins.io import AsyncCheckpointIO

class Slow(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        time.sleep(0.5)
        if checkpoint["global_step"] == 2:
            raise OSError(28, "No space left on device")
        super().save_checkpoint(checkpoint, path, storage_options)

saver = ModelCheckpoint(sys.argv[1], filename="{step}", every_n_train_steps=1, save_top_k=-1)
trainer = pl.Trainer(
    accelerator="cpu", max_steps=2, limit_val_batches=0, logger=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[saver, pg_events.lightning_callback(1)], plugins=[AsyncCheckpointIO(Slow())],
)
trainer.fit(BoringModel())
"""


def test_what_lightning_writes_in_a_thread_is_told_once_it_lies_there(tmp_path: Path) -> None:
    """Told at once it would be said to be whole while it was written; and one that failed was never there."""
    told = tmp_path / "told.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", IN_A_THREAD, str(tmp_path / "saved")], cwd=EXAMPLES, check=False,
        env={**os.environ, EVENTS_VARIABLE: str(told)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "No space left on device" in done.stderr, "Lightning itself says so at its end"
    found = [json.loads(line) for line in told.read_text().splitlines()]
    (saved,) = [it for it in found if it["event"] == "checkpoint"]
    assert saved["step"] == 1
    assert saved["bytes"] == Path(saved["path"]).stat().st_size
    assert saved["durable_s"] >= 0.5 > saved["block_s"]


def test_how_a_script_that_prints_on_rank_0_in_a_folder_of_its_own_scales_is_answered(tmp_path: Path) -> None:
    """A whole run, from one node to two. A busy machine may leave it open, but no node keeps less than a tenth."""
    asked = load_suite(str(EXAMPLES / "gpt.toml"))
    assert asked.nodes == (1, 2)
    short = replace(asked.cases[0], steps=45, warmup_steps=5, efficiency_min={"2": 0.1})
    store = run(replace(asked, repeats=2, cases=(short,)), choose("local")[0], tmp_path)
    trials = store.read("plan")["trials"]
    assert sorted(it["nodes"] for it in trials) == [1, 1, 2, 2]
    for trial in trials:
        steps = [it for it in steps_of(store) if it["trial"] == trial["id"]]
        told = [("n1.0", step, 8 * trial["nodes"]) for step in range(1, 46)]
        assert [(it["source"], it["step"], it["samples"]) for it in steps] == told
        assert 0 < steps[-1]["loss"] < steps[0]["loss"]
    assert has_throughput(store)
    results = store.read("results")
    (kept,) = [it for it in results["figures"] if it["name"] == "efficiency" and it["where"]["nodes"] == 2]
    assert kept["n"] == 2
    assert 0 < kept["median"] < 150
    (answer,) = [it for it in results["verdicts"] if it["check"] == "efficiency"]
    assert (answer["where"]["nodes"], answer["where"]["bar"]) == (2, 10)
    assert answer["verdict"] in {"pass", "unknown"}, answer


def test_a_script_that_prints_on_rank_0_is_broken_and_comes_back(tmp_path: Path) -> None:
    store = broken(EXAMPLES / "gpt-chaos.toml", tmp_path / "runs")
    trials = store.read("results")["trials"]
    assert [it["kind"] for it in trials] == ["worker_kill", "node_kill"]
    for trial in trials:
        assert trial["outcome"] in {"recovered", "unproven"}, trial  # it tells no state, so sameness is not proven
        assert {name: trial["verdicts"][name] for name in PROVEN} == dict.fromkeys(PROVEN, "pass")
    begins: list[int] = []
    anew = False
    for it in rundir.read_history(store):
        anew = anew or it["event"] == "start"
        if it["event"] == "step" and anew:
            begins, anew = [*begins, it["step"]], False
    assert len(begins) == 1 + len(trials)
    assert begins[0] == 1
    assert all(it > 1 for it in begins[1:]), "it went on from its checkpoint"
