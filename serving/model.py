"""A checkpoint as a model that needs no code of ours: `network.pt2`, its schema, and MLflow's folder around them.

Called by `serving.commands` and `serving.registry`. The network is exported by torch.export with any number of rows;
what it answers is compared with the network it came from before anything is kept.
"""

from __future__ import annotations

import io
import json
import logging
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proving_ground.serving import environment, score
from proving_ground.serving.mistakes import FailedError, ServingError
from proving_ground.serving.source import Lineage, Source
from proving_ground.training.config import Config, ConfigError, from_dict
from proving_ground.training.data.mapped import DataError
from proving_ground.training.models.task import ModelError, Task, task_of

INPUT, OUTPUT = "input", "output"
ROWS = 3  # of the example: neither one, nor what a network has by chance
TOLERANCE = 1e-5
"""Two answers are equal where they differ by at most this much, of 1 or of themselves, whichever is more."""
LINEAGE, EXAMPLE = "lineage.json", "example.json"

logging.getLogger("mlflow").setLevel(logging.ERROR)


def save(source: Source, folder: Path) -> None:
    """Write the model as MLflow keeps it: MLmodel, signature, example, `code/score.py`, `data/model/`.

    Raises:
        ServingError: the checkpoint's model is not known here, or has not these weights.
        FailedError: it cannot be exported, or answers differently then.
    """
    task, network = rebuilt(source)
    example = task.batch("test" if task.test_rows else "train", np.arange(ROWS)).inputs
    data = folder.with_name(f"{folder.name}.data") / "model"
    data.mkdir(parents=True)
    try:
        schema = write_network(network, example, data)
        write_json(data / LINEAGE, asdict(source.lineage))
        write_json(data / EXAMPLE, {"inputs": {INPUT: example.tolist()}})
        prove(network, example, data)
        save_around(data, schema, source.lineage, folder)
    finally:
        shutil.rmtree(data.parent, ignore_errors=True)


def rebuilt(source: Source) -> tuple[Task, nn.Module]:
    """The task and the network of a checkpoint, with its weights."""
    stored = source.parts["training"]["config"]
    known = {name: value for name, value in stored.items() if name in Config.__dataclass_fields__}
    try:
        config = from_dict({name: list(it) if isinstance(it, tuple) else it for name, it in known.items()})
        task = task_of(config.model)(config)
        network = task.model()
        network.load_state_dict(source.parts["model"])
    except (ConfigError, DataError, ModelError) as error:
        raise ServingError(f"{source.lineage.checkpoint}: {error}") from None
    except RuntimeError as error:
        raise ServingError(f"{source.lineage.checkpoint}: not the weights of {stored['model']!r}: {error}") from None
    return task, network.eval()


def write_network(network: nn.Module, example: Tensor, data: Path) -> dict[str, Any]:
    """Write `network.pt2` and `schema.json`; the schema.

    Raises:
        FailedError: torch cannot export it.
    """
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            rows = {0: torch.export.Dim.DYNAMIC}
            program = torch.export.export(network, (example,), dynamic_shapes=(rows,))
            torch.export.save(program, content := io.BytesIO())  # by itself it aborts the process on a full disk
            answer: Tensor = network(example)
    except Exception as error:  # noqa: BLE001 - torch has many kinds, which share no other
        raise FailedError(f"the network cannot be exported: {str(error).splitlines()[0]}") from None
    (data / score.NETWORK).write_bytes(content.getbuffer())
    schema = {"format": 1, "inputs": [described(INPUT, example)], "outputs": [described(OUTPUT, answer)]}
    write_json(data / score.SCHEMA, schema)
    return schema


def described(name: str, tensor: Tensor) -> dict[str, Any]:
    """A tensor's entry in the schema: shape of one row."""
    return {"name": name, "dtype": str(tensor.numpy(force=True).dtype), "shape": list(tensor.shape[1:])}


def prove(network: nn.Module, example: Tensor, data: Path) -> None:
    """Let the scoring module answer from what was written, for all rows and for one.

    Raises:
        FailedError: it answers differently from the network.
    """
    scorer = score.Scorer(data)
    for rows in (example, example[:1]):
        with torch.no_grad():
            wanted = network(rows).numpy()
        found = scorer.answer({INPUT: rows.numpy()})[OUTPUT]
        if (by := difference(found, wanted)) > TOLERANCE:
            raise FailedError(f"the exported network answers differently, by {by:.2g}; allowed are {TOLERANCE:g}")


def difference(one: Any, other: Any) -> float:  # noqa: ANN401 - arrays, or lists out of JSON
    """The largest difference of two answers, of 1 or of the larger; infinite where one is no array of that shape."""
    try:
        first, second = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return float("inf")
    if first.shape != second.shape or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("inf")
    apart = np.abs(first - second) / np.maximum(1.0, np.maximum(np.abs(first), np.abs(second)))
    return float(apart.max(initial=0.0))


def save_around(data: Path, schema: Mapping[str, Any], lineage: Lineage, folder: Path) -> None:
    """MLflow's folder around `data`: it loads by `code/score.py`, and says what that needs."""
    with warnings.catch_warnings(action="ignore"):  # its own types make it warn
        import mlflow.pyfunc  # noqa: PLC0415 - seconds, only here
        from mlflow.models import ModelSignature  # noqa: PLC0415 - same
        from mlflow.types import Schema, TensorSpec  # noqa: PLC0415 - same

        asked, answered = (
            Schema([TensorSpec(np.dtype(it["dtype"]), (-1, *it["shape"]), it["name"]) for it in schema[side]])
            for side in ("inputs", "outputs")
        )
        mlflow.pyfunc.save_model(
            path=str(folder), loader_module="score", data_path=str(data), code_paths=[score.__file__],
            signature=ModelSignature(asked, answered), pip_requirements=environment.pins(), metadata=asdict(lineage),
        )  # fmt: skip
    shutil.copy(data / EXAMPLE, folder / EXAMPLE)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document."""
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
