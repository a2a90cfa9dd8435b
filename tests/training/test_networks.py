"""The networks people train: their published sizes, their steps beside a plain loop's, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proving_ground.training import train
from proving_ground.training.config import Config, ConfigError, from_dict, load
from proving_ground.training.data import order
from proving_ground.training.data.mapped import DataError, write
from proving_ground.training.models import MODELS
from proving_ground.training.models.task import ModelError, task_of
from proving_ground.training.models.text import IGNORED, MASKED, gaps

from .test_loop_record import recorded

CONFIGS = Path(order.__file__).parents[1] / "configs"
NETWORKS = [name for name, known in MODELS.items() if known.sized]
KEYS: dict[str, Any] = {
    "global_batch": 8, "steps": 3, "optimizer": "adamw", "lr": 0.002, "eval_every": -1, "seed": 3, "clip_norm": 1.0,
}  # fmt: skip
PARAMETERS = {
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "vit": 86_567_656,
    "bert": 335_174_458,
    "gpt2": 124_439_808,
}
"""As published: torchvision's tables at 1,000 classes, and the models' cards at their own vocabularies."""


@pytest.mark.parametrize("model", NETWORKS)
def test_a_full_size_is_the_published_one(model: str, tmp_path: Path) -> None:
    images = {"image": np.zeros((2, 4, 4, 3), np.uint8), "label": np.array([0, 999])}
    words = {"token": np.zeros(1200, np.int32)}
    vocabulary = {"bert": 30_521, "gpt2": 50_256}.get(model, 0)
    shard = words if vocabulary else images
    write(tmp_path, {"name": "x", "source": "x", "vocabulary": vocabulary}, {"train": [shard], "test": [shard]})
    with torch.device("meta"):
        network = task_of(model)(from_dict({"model": model, "size": "full", "data": str(tmp_path)})).model()
    assert sum(it.numel() for it in network.parameters()) == PARAMETERS[model]


def plain_losses(config: Config) -> list[float]:
    """The losses of a loop as in a textbook: one process, no DDP."""
    task = task_of(config.model)(config)
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.threads)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    losses = []
    for step in range(config.steps):
        rows = order.global_batch_rows(task.rows, config.global_batch, config.seed, step)
        loss = task.loss(model, task.batch("train", rows)) / len(rows)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("model", NETWORKS)
def test_its_losses_are_a_plain_loop_s_to_the_bit(model: str, tmp_path: Path) -> None:
    config, steps = recorded(tmp_path, **KEYS | {"model": model})
    told = [it["loss"] for it in steps]
    assert told == plain_losses(config)
    assert len(set(told)) == config.steps


@pytest.mark.parametrize("model", NETWORKS)
def test_activations_computed_again_are_the_same(model: str) -> None:
    keys = KEYS | {"model": model, "dropout": 0.2}
    kept = train(from_dict(keys))
    again = train(from_dict(keys | {"activation_checkpointing": True}))
    assert again.parameters_sha256 == kept.parameters_sha256


def test_blocks_keep_no_activations() -> None:
    """What backward needs of a block is gone after forward: the tensors that autograd saved are fewer."""
    saved = {}
    for again in (False, True):
        config = from_dict({"model": "gpt2", "activation_checkpointing": again})
        task = task_of("gpt2")(config)
        network, count = task.model(), [0]
        if again:
            from proving_ground.training.device.recompute import recompute  # noqa: PLC0415 - beside its use

            recompute(task, network)

        def keep(tensor: torch.Tensor, count: list[int] = count) -> torch.Tensor:
            count[0] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda it: it):
            task.loss(network, task.batch("train", np.arange(2)))
        saved[again] = count[0]
    assert saved[True] < 0.5 * saved[False]


def test_a_row_has_the_same_gaps_whenever_it_comes() -> None:
    rows = np.arange(4000)
    taken = gaps(rows, 64)
    assert (gaps(rows[[17, 3]], 64) == taken[[17, 3]]).all()
    assert taken.any(axis=1).all()
    assert abs(taken.mean() - MASKED) < 0.01
    task = task_of("bert")(from_dict({"model": "bert"}))
    inputs, targets, _ = task.batch("train", rows[:50])
    assert ((targets == IGNORED) == (inputs != 256)).all()


def test_gpt2_sees_no_future() -> None:
    """A token's logits stay as they are when later tokens change."""
    task = task_of("gpt2")(from_dict({"model": "gpt2"}))
    network = task.model().eval()
    tokens = task.batch("train", np.arange(1)).inputs
    other = tokens.clone()
    other[0, 40:] = 65
    first, second = network(tokens), network(other)
    assert torch.equal(first[0, :40], second[0, :40])
    assert not torch.equal(first[0, 40:], second[0, 40:])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": "resnet51"}, r"model = 'resnet51': must be one of digits, .*, or `package.module:Task` of your own"),
        ({"model": "digits", "size": "full"}, "size = 'full': model = 'digits' has one size"),
        ({"model": "stocks", "activation_checkpointing": True}, "a model with blocks: resnet50, "),
        ({"model": "resnet50", "activation_checkpointing": True, "norm": "batch"}, "needs norm = 'group'"),
        ({"model": "vit", "sync_batchnorm": True, "norm": "batch"}, "a model that has batch statistics: digits, "),
        ({"model": "paced", "profile": "resnet50-cpu", "precision": "bf16"}, "model = 'paced' computes nothing"),
        ({"precision": "fp16", "updates": "diloco"}, "needs updates = 'every_step'"),
        ({"precision": "fp16", "loss_scale": 1000.0}, "loss_scale = 1000: must be a power of two"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_dict(keys)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no.such_module:Task", "cannot be imported: No module named 'no'"),
        ("proving_ground.training.data.order:Task", "module proving_ground.training.data.order has no Task"),
        (
            "proving_ground.training.data.order:share",
            "is no task: it lacks model, optimizer, batch, loss, sums, metrics",
        ),
    ],
)
def test_a_model_of_one_s_own_that_is_none(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        task_of(from_dict({"model": name}).model)


def test_a_model_of_one_s_own_is_trained() -> None:
    """A class of the user's, with the rules of its configuration in it."""
    result = train(from_dict({"model": "tests.training.own_task:Line", "steps": 150, "global_batch": 16, "lr": 0.1}))
    assert result.metrics["loss"] < 1e-3
    with pytest.raises(ConfigError, match="Line has no normalisation"):
        train(from_dict({"model": "tests.training.own_task:Line", "norm": "batch", "steps": 1}))


@pytest.mark.parametrize(
    ("about", "tokens", "words"),
    [
        ({}, np.zeros(200, np.uint8), "the manifest does not say how many tokens there are: vocabulary"),
        ({"vocabulary": 9}, np.full(200, 9, np.uint8), "has token 9, and a vocabulary of 9"),
        ({"vocabulary": 9}, np.zeros(200, np.float32), r"column 'token' is float32 \(\); this model needs uint8 or "),
        ({"vocabulary": 9}, np.zeros(60, np.uint8), "needs more than 64 tokens in each split"),
    ],
)
def test_a_text_that_cannot_be_read(tmp_path: Path, about: dict[str, int], tokens: Any, words: str) -> None:
    shard = {"token": tokens}
    write(tmp_path, {"name": "x", "source": "x", **about}, {"train": [shard], "test": [shard]})
    with pytest.raises(DataError, match=words):
        task_of("gpt2")(from_dict({"model": "gpt2", "data": str(tmp_path)})).batch("train", np.arange(2))


@pytest.mark.parametrize(
    ("model", "short", "metric", "bar"),
    [
        ("resnet50", "epochs=2", "accuracy", 0.7),
        ("resnet152", "epochs=2", "accuracy", 0.7),
        ("vit", "epochs=3", "accuracy", 0.7),
        ("gpt2", "steps=200", "loss", 3.0),
        ("bert", "steps=60", "loss", 3.3),
    ],
)
def test_it_learns(model: str, short: str, metric: str, bar: float) -> None:
    """A part of its recipe is enough to get far from chance: a tenth of the images, ln 256 = 5.5 nats a byte."""
    config = load(CONFIGS / f"{model}-tiny.toml", sets=[short])
    found = train(config, tell=lambda _: None).metrics[metric]
    assert found >= bar if metric == "accuracy" else found <= bar
