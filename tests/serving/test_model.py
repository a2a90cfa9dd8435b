"""A model of any task: one of numbers, and one of tokens."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from proving_ground.serving import model, score
from proving_ground.serving.mistakes import FailedError, ServingError
from proving_ground.serving.source import Lineage, Source
from proving_ground.training.config import from_dict
from proving_ground.training.models.task import task_of

pytestmark = pytest.mark.timeout(400)  # torch, on a busy machine


def untrained(name: str) -> Source:
    config = from_dict({"model": name})
    training = {"config": asdict(config), "step": 0}
    parts = {"model": task_of(name)(config).model().state_dict(), "training": training}
    return Source(parts, Lineage("step-0", "0", 0, name, 1, 1, "fp32", 0, "2"))


@pytest.mark.parametrize(("name", "dtype"), [("stocks", "float32"), ("bert", "int64")])
def test_any_task_s_network_is_exported(tmp_path: Path, name: str, dtype: str) -> None:
    task, network = model.rebuilt(untrained(name))
    example = task.batch("test", np.arange(5)).inputs
    schema = model.write_network(network, example, tmp_path)
    model.prove(network, example, tmp_path)
    assert schema["inputs"][0]["dtype"] == dtype
    if dtype == "int64":
        with pytest.raises(score.SchemaError, match="beyond what the network knows"):
            score.Scorer(tmp_path).answer({"input": (example + 10**6).numpy()})


def test_a_network_that_was_exported_wrong_is_refused(tmp_path: Path) -> None:
    task, network = model.rebuilt(untrained("stocks"))
    example = task.batch("test", np.arange(3)).inputs
    model.write_network(network, example, tmp_path)
    next(network.parameters()).data.add_(1.0)
    with pytest.raises(FailedError, match="answers differently"):
        model.prove(network, example, tmp_path)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    mixed = untrained("stocks")
    mixed.parts["training"]["config"]["model"] = "digits"
    with pytest.raises(ServingError, match="not the weights of 'digits'"):
        model.save(mixed, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
