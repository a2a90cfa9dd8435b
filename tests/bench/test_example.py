"""A trainer of the user's own, measured for real: the example in `bench/examples/` on local nodes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from proving_ground.bench import rundir
from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.bench.examples import pg_events
from proving_ground.bench.run import run
from proving_ground.bench.spec import load_suite
from proving_ground.training.events import EVENTS_VARIABLE, check_event

ROOT = Path(__file__).parent.parent.parent
STEPS = 8


def test_a_trainer_that_only_prints_is_measured(tmp_path: Path) -> None:
    suite = load_suite(str(ROOT / "bench/examples/own.toml"))
    short = replace(suite.cases[0], steps=STEPS, warmup_steps=2, cpus_per_node=1.0)
    store = run(replace(suite, nodes=(2,), repeats=1, cases=(short,)), LocalCluster(), tmp_path / "runs")
    steps = [it for it in rundir.read_history(store) if it["event"] == "step"]
    assert sorted((it["source"], it["step"]) for it in steps) == [
        (source, step) for source in ("n1.0", "n2.0") for step in range(1, STEPS + 1)
    ]
    assert {it["samples"] for it in steps} == {256}
    done = subprocess.run(
        [sys.executable, "-m", "proving_ground.reports", str(store.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = {it["name"] for it in store.read("results")["figures"]}
    assert "throughput" in figures
    assert "time_share" not in figures, "a part that was not measured is a gap"


@pytest.mark.parametrize("mechanism", ["relaunch", "torchrun-tuned"])  # `restart` is that of test_frameworks
def test_a_trainer_that_only_prints_is_broken_and_comes_back(mechanism: str, tmp_path: Path) -> None:
    """Nothing of ours in it: rank, world size and its end are known from what was started."""
    text = (ROOT / "bench/examples/own-chaos.toml").read_text()
    assert 'mechanism = "restart"' in text
    (tmp_path / "own-chaos.toml").write_text(text.replace('mechanism = "restart"', f'mechanism = "{mechanism}"'))
    words = ["--runs", str(tmp_path / "runs"), "run", "--suite", str(tmp_path / "own-chaos.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "proving_ground.chaos", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "verdict: unknown" in done.stdout  # whether it stayed the same training cannot be told: no pass
    store = rundir.find(tmp_path / "runs", "own-chaos")
    trials = store.read("results")["trials"]
    assert [(it["kind"], it["outcome"]) for it in trials] == [("worker_kill", "recovered"), ("node_kill", "recovered")]
    events = rundir.read_history(store)
    starts = [it for it in events if it["event"] == "start"]
    assert {it["world_size"] for it in starts} == {2}
    assert {it["rank"] for it in starts} == {0, 1}


def test_a_trainer_that_tells_of_its_samples_and_state_is_proven_the_same(tmp_path: Path) -> None:
    """Nothing of ours in it but the one file that it copied: fingerprints as its twin's, each sample once.

    Two ranks a node: with four the order of a sum counts, which DDP would change at each start.
    """
    text = (ROOT / "bench/examples/own-same.toml").read_text()
    suite = tmp_path / "own-same.toml"
    suite.write_text(text.replace("twins = [2]", "twins = [2]\nranks_per_node = 2"))
    words = ["--runs", str(tmp_path / "runs"), "run", "--suite", str(suite)]
    done = subprocess.run(
        [sys.executable, "-m", "proving_ground.chaos", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    store = rundir.find(tmp_path / "runs", "own-same")
    assert {it["ranks_per_node"] for it in store.read("plan")["trials"]} == {2}
    trials = store.read("results")["trials"]
    assert [(it["kind"], it["outcome"]) for it in trials] == [("worker_kill", "recovered"), ("node_kill", "recovered")]
    for it in trials:
        assert it["verdicts"]["same_training"] == "pass", it
        assert it["verdicts"]["exactly_once"] == "pass", it


def test_what_the_client_tells_follows_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "new" / "$RANK.jsonl"))
    monkeypatch.setenv("RANK", "3")
    job = pg_events.Job()
    model = torch.nn.Linear(2, 1)
    job.ready(rows=9)
    job.resumed(4, "newest.pt")
    job.step(5, 8, loss=0.5, rows=torch.arange(2))
    job.checkpoint(5, "newest.pt", 100, 0.01)
    job.fingerprint(5, model, torch.optim.SGD(model.parameters(), lr=0.1))
    job.end(5)
    found = [json.loads(line) for line in (tmp_path / "new" / "3.jsonl").read_text().splitlines()]
    assert [check_event(it)["event"] for it in found] == [
        "ready", "resume", "step", "checkpoint", "fingerprint", "end"
    ]  # fmt: skip
    assert found[2]["rows"] == [0, 1]
    moved = {name: tensor + 0.25 for name, tensor in model.state_dict().items()}
    far = math.dist(pg_events.sketch(moved) or [], found[4]["sketch"]) / pg_events.SKETCH**0.5
    assert 0 < far < 4 * 0.25 * 3**0.5, "about as far as the parameters are"
    assert pg_events.sketch(model.state_dict()) == found[4]["sketch"]
    assert "lr" not in found[2]


def test_the_client_needs_nothing_but_python(tmp_path: Path) -> None:
    """It is one file that users copy: it comes with no package, and imports none."""
    copied = tmp_path / "pg_events.py"
    copied.write_text(Path(pg_events.__file__).read_text())
    code = "import sys; sys.path.insert(0, sys.argv[1]); import pg_events; pg_events.Job().step(1, 8); print('told')"
    words = [sys.executable, "-I", "-S", "-c", code, str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")


LATE = """
import hashlib, os, sys, threading
sys.path.insert(0, "bench/examples")
import pg_events
pg_events.Job()
def work():
    hashlib.blake2b(bytes(int(sys.argv[1])))  # without the interpreter, as Gloo's; OpenSSL's may crash at exit
    os.write(1, b"let go")
threading.Thread(target=work, daemon=True).start()
"""


@pytest.mark.parametrize(("file", "size", "said"), [("told.jsonl", 2**27, "let go"), ("", 2**30, "")])
def test_a_process_that_tells_ends_once_its_threads_are_done(file: str, size: int, said: str, tmp_path: Path) -> None:
    env = {**os.environ, EVENTS_VARIABLE: str(tmp_path / file) if file else ""}
    command = [sys.executable, "-c", LATE, str(size)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == said


def test_an_optimizer_that_is_watched_tells_what_it_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "told.jsonl"))
    job, model = pg_events.Job(), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.watch(torch.nn.parallel.DataParallel(model), optimizer, samples=4, fingerprint_every=10)
    job.resumed(8, "newest.pt")
    for row in range(4):  # two batches a step
        job.learned(torch.tensor([row]))
        model(torch.ones(1, 2)).sum().backward()
        if row % 2:
            optimizer.step()
    found = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()][1:]
    assert [(it["event"], it["step"], it.get("rows")) for it in found] == [
        ("step", 9, [0, 1]), ("step", 10, [2, 3]), ("fingerprint", 10, None)
    ]  # fmt: skip
    assert found[0] | {"samples": 4, "lr": 0.1} == found[0]
    assert found[2]["parameters_sha256"] == pg_events.sha256(model.state_dict())


def test_outside_of_a_run_the_client_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVENTS_VARIABLE, raising=False)
    job = pg_events.Job()
    job.step(1, 8)
    job.fingerprint(1, None, None)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    job.watch(model, optimizer, samples=1)
    job.learned([1])
    optimizer.step()
    assert not optimizer._optimizer_step_post_hooks


def test_callbacks_change_nothing_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVENTS_VARIABLE, raising=False)
    asked: list[object] = []
    trainer = SimpleNamespace(
        save_checkpoint=print, train_dataloader=[], global_step=0, state=SimpleNamespace(fn="fit")
    )

    def read(batch: object) -> list[int]:
        asked.append(batch)
        return [1]

    lightning = pg_events.OfLightning(4, 1, rows=read)
    lightning.setup(trainer, None, "fit")
    lightning.on_train_start(trainer, None)
    lightning.on_train_batch_start(trainer, None, [0])
    assert trainer.save_checkpoint is print
    assert not asked
    model, state = torch.nn.Linear(1, 1), SimpleNamespace(global_step=0, is_world_process_zero=True)
    theirs = pg_events.OfTransformers(1, rows="row")
    for _ in range(2):  # trained twice
        theirs.on_train_begin(SimpleNamespace(output_dir="none"), state, None, model=model, train_dataloader=[])
    assert len(model._forward_pre_hooks) == 1
    assert theirs.taken(model, (), {"row": torch.ones(1), "x": 1}) == ((), {"x": 1})
    assert theirs.taken(model, (), {"x": 1}) == ((), {"x": 1})  # an evaluation's data may have no ids


def test_what_is_evaluated_is_not_learned_and_what_is_loaded_for_it_is_no_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "told.jsonl"))
    model, theirs = torch.nn.Linear(1, 1), pg_events.OfTransformers(0, rows="row")
    theirs.taken(model.eval(), (), {"row": torch.tensor([5])})
    theirs.taken(model.train(), (), {"row": torch.tensor([7])})
    theirs.job.step(1, 1)
    trainer = SimpleNamespace(save_checkpoint=print, ckpt_path="a.ckpt", state=SimpleNamespace(fn="test"))
    lightning = pg_events.OfLightning(4, 1, rows=None)
    lightning.on_load_checkpoint(trainer, None, {"global_step": 3})
    trainer.state.fn = "fit"
    lightning.on_load_checkpoint(trainer, None, {"global_step": 4})
    lightning.setup(trainer, None, "fit")
    wrapped = trainer.save_checkpoint
    lightning.setup(trainer, None, "fit")  # fitted twice
    assert trainer.save_checkpoint is wrapped
    found = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert [(it["event"], it["step"], it.get("rows")) for it in found] == [("step", 1, [7]), ("resume", 4, None)]


def test_hashes_are_equal_only_of_what_is_equal() -> None:
    one = {"a": torch.tensor([1.0, 2.0]), "b": [1, (2.0, "x")]}
    assert pg_events.sha256(one) == pg_events.sha256({"a": torch.tensor([1.0, 2.0]), "b": [1, (2.0, "x")]})
    others = [
        {"a": torch.tensor([1.0, 2.0000002]), "b": [1, (2.0, "x")]},
        {"a": torch.tensor([[1.0, 2.0]]), "b": [1, (2.0, "x")]},
        {"a": torch.tensor([1.0, 2.0]), "b": [1, 2.0, "x"]},
        {"a": torch.tensor([1.0, 2.0]), "b": [1, (2, "x")]},
    ]
    assert pg_events.sha256(one) not in {pg_events.sha256(it) for it in others}
