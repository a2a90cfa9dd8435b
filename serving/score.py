"""The one scoring module: it travels inside the model and serves in both engines. Nothing of this project is imported.

Azure ML's server calls `init` once and `run` for each request; MLflow calls `_load_pyfunc` once and `predict`. All of
them end in `Scorer.answer`, which checks the inputs against the model's own `schema.json` and runs its `network.pt2`.
`serving.model` copies this file into every model; `serving.check` calls it in its own process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

NETWORK, SCHEMA = "network.pt2", "schema.json"
KINDS = {"f": "fiu", "i": "iu", "u": "iu"}
"""Kind of the dtype asked for → kinds of numbers that JSON may bring for it: 1 is a good 1.0, 1.5 is no token."""
STATE: dict[str, Scorer] = {}
"""What `init` has loaded: Azure ML's contract has module-level state."""


class SchemaError(ValueError):
    """Inputs that do not fit the model's schema, in one line."""


class Scorer:
    """A network, and what it may be asked."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)  # the same sums in every process, whatever else it does
        self.schema: dict[str, Any] = json.loads((folder / SCHEMA).read_text())
        self._network = torch.export.load(folder / NETWORK).module()

    def answer(self, inputs: object) -> dict[str, Any]:
        """Name → array of what the network answers.

        Raises:
            SchemaError: the inputs are not what the schema asks for.
        """
        arrays = checked(inputs, self.schema["inputs"])
        try:
            with torch.no_grad():
                found: np.ndarray[Any, Any] = self._network(*map(torch.from_numpy, arrays)).numpy()
        except IndexError:
            raise SchemaError("a number is beyond what the network knows") from None
        return {self.schema["outputs"][0]["name"]: found}

    def predict(self, model_input: object, params: object = None) -> dict[str, Any]:
        """What MLflow calls; its servers answer with the message of its own kind of error."""
        del params
        try:
            return self.answer(model_input)
        except SchemaError as error:
            from mlflow.exceptions import MlflowException  # noqa: PLC0415 - there where MLflow calls
            from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE  # noqa: PLC0415 - same

            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from None


def checked(inputs: object, asked: Sequence[Mapping[str, Any]]) -> list[np.ndarray[Any, Any]]:
    """The inputs as the arrays that the network takes, in its order.

    Raises:
        SchemaError: a name more or less, or an input that is not as asked; rows that are not equally many.
    """
    names = [it["name"] for it in asked]
    if not isinstance(inputs, Mapping) or set(inputs) != set(names):
        given = sorted(map(str, inputs)) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise SchemaError(f"inputs must be exactly {names}, not {given}")
    arrays = [cast(inputs[it["name"]], it) for it in asked]
    if len({len(it) for it in arrays}) != 1:
        raise SchemaError(f"inputs have {' and '.join(str(len(it)) for it in arrays)} rows; must be as many in each")
    return arrays


def cast(values: object, asked: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """One input as an array.

    Raises:
        SchemaError: numbers of another kind, another shape, no rows, or no finite number.
    """
    name, dtype = asked["name"], np.dtype(asked["dtype"])
    try:
        array = np.asarray(values)
    except ValueError:
        raise SchemaError(f"{name}: rows of different shapes") from None
    if not array.size or array.shape[1:] != tuple(asked["shape"]):
        raise SchemaError(f"{name}: must be of shape {told(['n', *asked['shape']])}, not {told(array.shape)}")
    if array.dtype.kind not in KINDS[dtype.kind]:
        raise SchemaError(f"{name}: must be {dtype}, not {array.dtype}")
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(array, dtype)
    if not np.isfinite(made).all():
        raise SchemaError(f"{name}: has a number that is not finite as {dtype}")
    return made


def told(shape: Sequence[object]) -> str:
    """A shape for people."""
    return f"({', '.join(map(str, shape))})"


def init() -> None:
    """Azure ML: load the model from where the platform has put it."""
    root = Path(os.environ["AZUREML_MODEL_DIR"])
    STATE["scorer"] = Scorer(next(iter(sorted(root.rglob(NETWORK)))).parent)


def run(raw_data: str) -> Any:  # noqa: ANN401 - a document, or the server's own kind of answer
    """Azure ML: answer one request, `{"inputs": {NAME: rows}}`, in the words of MLflow's servers."""
    try:
        answers = STATE["scorer"].answer(inputs_of(raw_data))
    except (json.JSONDecodeError, SchemaError) as error:
        from azureml_inference_server_http.api.aml_response import AMLResponse  # noqa: PLC0415 - there where it calls

        return AMLResponse({"message": str(error)}, 400, json_str=True)
    return {"predictions": {name: array.tolist() for name, array in answers.items()}}


def inputs_of(raw_data: str) -> object:
    """What a request brings.

    Raises:
        SchemaError: it is none.
    """
    document = json.loads(raw_data)
    if not isinstance(document, dict) or set(document) != {"inputs"}:
        raise SchemaError("the request must be {'inputs': {…}}")
    return document["inputs"]


def _load_pyfunc(path: str) -> Scorer:
    """MLflow: load the model from a folder."""
    return Scorer(Path(path))
