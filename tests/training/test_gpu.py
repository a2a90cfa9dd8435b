"""On a real GPU: the same bits again, at any number of ranks and after a restart; its clock, its memory, its streams.

`nox -s gpu-tests` where there is one. One GPU is enough: ranks share it, which Gloo allows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proving_ground.bench.clusters.local import gpus, intruder
from proving_ground.reports.recovery.first_steps import COMPARED, NEAR
from proving_ground.training.measuring import profiling

from .ranks import Event, sets, start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
WAIT_S = 240
KEYS: dict[str, Any] = {
    "model": "digits", "device": "cuda", "global_batch": 24, "steps": 6, "fingerprint_every": 2, "ledger": "true",
    "eval_every": -1, "dropout": 0.2, "optimizer": "adamw", "lr": 0.002, "clip_norm": 1.0,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "digits": {},
    "stocks": {"model": "stocks", "dropout": 0.0},
    "stocks-bf16": {"model": "stocks", "dropout": 0.0, "precision": "bf16"},
    "resnet50": {"model": "resnet50", "dropout": 0.0},
    "batch-norm": {"model": "resnet50", "dropout": 0.0, "norm": "batch", "sync_batchnorm": "true"},
    "vit": {"model": "vit"},
    "bert": {"model": "bert"},
    "gpt2": {"model": "gpt2"},
    "vit-bf16": {"model": "vit", "precision": "bf16"},
    "gpt2-bf16": {"model": "gpt2", "precision": "bf16"},
    "bert-fp16": {"model": "bert", "precision": "fp16"},
    "again": {"model": "vit", "activation_checkpointing": "true"},
}


def trained(folder: Path, count: int = 1, **keys: Any) -> list[Event]:
    """What rank 0 of a training said that ended well."""
    ranks = start(folder, count, sets(**KEYS | keys), TORCH_CPP_LOG_LEVEL="ERROR")
    assert ranks.wait(WAIT_S) == [0] * count, ranks.printed()
    return ranks.events()


def of(events: list[Event], name: str) -> list[Event]:
    return [it for it in events if it["event"] == name]


def losses(events: list[Event]) -> list[float]:
    return [it["loss"] for it in of(events, "step")]


def bits(events: list[Event]) -> list[str]:
    """The state at every fingerprint, and at the end."""
    found = [
        it[name]
        for it in of(events, "fingerprint")
        for name in ("parameters_sha256", "optimizer_sha256", "random_sha256")
    ]
    return [*found, of(events, "end")[0]["parameters_sha256"]]


@pytest.mark.parametrize("model", MODELS)
def test_a_training_gives_the_same_bits_again(tmp_path: Path, model: str) -> None:
    first, second = (trained(tmp_path / name, **MODELS[model]) for name in ("first", "second"))
    assert of(first, "ready")[0]["device"] == "cuda:0"
    assert of(first, "ready")[0]["backend"] == "nccl"
    assert bits(first) == bits(second)


def test_other_seeds_give_other_bits(tmp_path: Path) -> None:
    assert bits(trained(tmp_path / "0", seed=0)) != bits(trained(tmp_path / "1", seed=1))


@pytest.mark.parametrize("model", ["digits", "gpt2-bf16"])
def test_a_training_that_goes_on_ends_where_one_that_was_not_stopped_ends(tmp_path: Path, model: str) -> None:
    whole = trained(tmp_path / "whole", **MODELS[model])
    keys = {**MODELS[model], "checkpoint_dir": str(tmp_path / "checkpoints"), "checkpoint_every": 2}
    trained(tmp_path / "half", **keys | {"steps": 4})
    rest = trained(tmp_path / "rest", **keys)
    assert [it["step"] for it in of(rest, "step")] == [5, 6]
    assert bits(rest)[-4:] == bits(whole)[-4:]


@pytest.mark.parametrize("model", ["digits", "vit", "gpt2-bf16"])
def test_exact_sums_are_the_same_at_every_number_of_ranks(tmp_path: Path, model: str) -> None:
    keys = {**MODELS[model], "backend": "gloo", "reduction": "exact", "shards": 6}
    alone, two, three = (bits(trained(tmp_path / str(size), size, **keys)) for size in (1, 2, 3))
    assert alone == two == three


def test_batches_that_are_read_ahead_arrive_whole(tmp_path: Path) -> None:
    """Copied from pinned memory by a stream of its own, beside what computes."""
    keys: dict[str, Any] = {"accumulate": 3, "steps": 30, "global_batch": 256}
    in_the_step, ahead = (trained(tmp_path / str(it), prefetch=it, **keys) for it in (0, 3))
    assert bits(in_the_step) == bits(ahead)


@pytest.mark.parametrize("model", ["digits", "stocks", "stocks-bf16", "vit", "bert", "gpt2-bf16"])
def test_the_first_steps_are_those_of_a_plain_loop(tmp_path: Path, model: str) -> None:
    keys = {**KEYS, **MODELS[model], "backend": "gloo", "fingerprint_every": COMPARED}
    steps = of(trained(tmp_path / "job", 2, **keys), "step")[:COMPARED]
    config = tmp_path / "config.yaml"
    config.write_text("".join(f"{name}: {value}\n" for name, value in keys.items()))
    plain = start(tmp_path / "plain", 1, ["--config", str(config), "--ranks", "2"], command="reference")
    assert plain.wait(WAIT_S) == [0], plain.printed()
    for name, near in NEAR.items():
        its = [it[name] for it in plain.events(0, "step")[: len(steps)]]
        assert np.allclose([it[name] for it in steps], its, rtol=near), name


def test_a_steps_parts_are_the_device_s_time(tmp_path: Path) -> None:
    steps = of(trained(tmp_path, model="vit", size="full", global_batch=32, steps=8, fingerprint_every=0), "step")[3:]
    for step in steps:
        assert step["forward_s"] > 0
        assert step["backward_s"] > step["forward_s"] / 2
        parts = sum(step[f"{name}_s"] for name in ("data", "forward", "backward", "comm", "optimizer", "checkpoint"))
        assert 0.8 * step["step_s"] < parts < 1.01 * step["step_s"]


LARGE: dict[str, Any] = {
    "model": "resnet50", "size": "full", "global_batch": 256, "steps": 2, "fingerprint_every": 0, "dropout": 0.0,
}  # fmt: skip
LITTLE = {
    "PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.1",
    "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.1",
}


def test_what_does_not_fit_is_made_in_pieces(tmp_path: Path) -> None:
    """A tenth of the GPU, by torch's own limit: out of memory without, in micro-batches with `fit_memory`."""
    keys = KEYS | LARGE
    short = start(tmp_path / "short", 1, sets(**keys), **LITTLE)
    assert short.wait(WAIT_S) == [1]
    assert short.events(0, "error")[0]["kind"] == "OutOfMemoryError", short.printed()
    fitted = start(tmp_path / "fitted", 1, sets(**keys | {"fit_memory": "true"}), **LITTLE)
    assert fitted.wait(WAIT_S) == [0], fitted.printed()
    (rung,) = fitted.events(0, "memory")
    assert (rung["rung"], 0 < rung["micro_batch"] < 256) == ("micro_batch", True)
    roomy = trained(tmp_path / "roomy", **LARGE)
    assert np.allclose(losses(fitted.events()), losses(roomy), rtol=2e-3)


def test_the_largest_batch_is_found_that_a_training_fits_with(tmp_path: Path) -> None:
    """Under the same limit, within a tenth."""
    keys = KEYS | LARGE | {"precision": "bf16"}
    ranks = start(tmp_path / "batch", 1, [*sets(**keys), "--json"], command="batch", **LITTLE)
    assert ranks.wait(WAIT_S) == [0], ranks.printed()
    found = json.loads(ranks.printed().splitlines()[-1])
    assert found["bounded"]
    assert found["largest"] >= found["enough"] > 0
    for name, batch, status in (("fits", found["largest"], 0), ("beyond", int(1.1 * found["largest"]) + 8, 1)):
        training = start(tmp_path / name, 1, sets(**keys | {"global_batch": batch, "eval_every": -1}), **LITTLE)
        assert training.wait(WAIT_S) == [status], training.printed()


def test_a_model_that_is_cut_trains_over_nccl(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"model": "vit", "dropout": 0.0}
    cut, whole = (trained(tmp_path / it, parallel=it, **keys) for it in ("fsdp", "ddp"))
    assert np.allclose(losses(cut), losses(whole), rtol=1e-4)
    assert of(cut, "ready")[0]["backend"] == "nccl"


def test_a_compiled_model_learns_the_same(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"fingerprint_every": 0, "dropout": 0.0, "timeout_s": 200}
    compiled, plain = (trained(tmp_path / it, compile=it, **keys) for it in ("true", "false"))
    assert np.allclose(losses(compiled), losses(plain), rtol=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_profile_is_of_the_gpu(tmp_path: Path, precision: str) -> None:
    out = tmp_path / "profile.json"
    words = ["--model", "resnet18", "--batch", "8", "--device", "cuda", "--precision", precision, "--out", str(out)]
    ranks = start(tmp_path / "ranks", 1, words, command="profile")
    assert ranks.wait(WAIT_S) == [0], ranks.printed()
    read = profiling.read(out)
    assert read.origin["device"] == torch.cuda.get_device_name(0)
    assert 0 < read.backward[0].ready_s <= read.backward[-1].ready_s <= read.backward_s


@pytest.mark.parametrize(
    ("program", "table"),
    [
        ("memory", 'models = ["resnet18"]\nbatches = [1, 8]\n'),
        ("collectives", 'sizes = [4096, 1048576]\nrounds = 2\ndevice = "cuda"\n'),
        ("storing", 'sizes_mb = [10]\nrounds = 2\ndevice = "cuda"\n'),
        ("plain", 'model = "gpt2"\nrounds = 2\nprecision = "bf16"\n'),
        ("plain", 'model = "vit"\nrounds = 2\nddp = true\n'),
    ],
)
def test_measuring_programs_measure_the_gpu(tmp_path: Path, program: str, table: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(table)
    ranks = start(tmp_path / "ranks", 1, ["--config", str(config)], command=program)
    assert ranks.wait(WAIT_S) == [0], ranks.printed()
    assert ranks.events(0, "ready")[0].get("device", "cuda") in ("cuda", "cuda:0")
    found = ranks.events(0, "measure") + ranks.events(0, "collective")
    assert found
    for it in found:
        assert (it["value"] if "value" in it else it["seconds"]) > 0
        assert it["event"] == "collective" or it["where"]["device"] == "cuda"


def test_the_operations_of_a_known_gpu_are_counted(tmp_path: Path) -> None:
    (ready,) = of(trained(tmp_path, model="vit", precision="bf16", count_flops="true"), "ready")
    assert ready["flops_per_sample"] > 0
    known = {"NVIDIA H200": 989.0, "NVIDIA H100 80GB HBM3": 989.0, "NVIDIA A100-SXM4-80GB": 312.0}
    if (name := torch.cuda.get_device_name(0)) in known:
        assert ready["peak_tflops"] == known[name]


def test_the_driver_tells_what_is_asked_of_it() -> None:
    watcher = gpus.Watcher()
    sample = watcher.sample()
    watcher.close()
    for gpu in sample["gpus"]:
        assert {"utilisation", "memory_used", "memory_total", "power_w", "temperature_c", "sm_mhz"} <= gpu.keys()
        assert 0 < gpu["memory_used"] < gpu["memory_total"]
    assert gpus.states()[0]["name"] == torch.cuda.get_device_name(0)


def test_another_tenant_takes_memory_and_gives_it_back() -> None:
    """The fault `gpu_memory`, here of one GiB."""
    before = [it["free_bytes"] for it in gpus.states()]
    tenant = intruder.start([], "gpu", str(min(before) // 2**20 - 1024))
    try:
        assert intruder.ready(tenant)
        assert gpus.states()[0]["free_bytes"] < before[0] - 2**29
    finally:
        intruder.end(tenant)
    assert gpus.states()[0]["free_bytes"] > before[0] - 2**28
