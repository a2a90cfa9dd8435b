"""The scoring module: what it refuses, in both servers' words."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest

from proving_ground.serving import check, score
from proving_ground.serving.mistakes import FailedError
from tests.serving.conftest import Trained

pytestmark = pytest.mark.timeout(400)  # torch, on a busy machine
IMAGE = [{"name": "input", "dtype": "float32", "shape": [1, 8, 8]}]
TOKEN = [{"name": "input", "dtype": "int64", "shape": [2]}]
GOOD = np.zeros((2, 1, 8, 8)).tolist()


def test_what_fits_is_taken() -> None:
    (array,) = score.checked({"input": GOOD}, IMAGE)
    assert (array.dtype, array.shape) == (np.dtype("float32"), (2, 1, 8, 8))
    (tokens,) = score.checked({"input": [[1, 2]]}, TOKEN)
    assert tokens.dtype == np.dtype("int64")


@pytest.mark.parametrize(
    ("inputs", "asked", "words"),
    [
        ({"input": GOOD, "more": GOOD}, IMAGE, "must be exactly"),
        ({}, IMAGE, "must be exactly"),
        ([GOOD], IMAGE, "not list"),
        ({"input": [[1.0, 2.0]]}, IMAGE, "must be of shape"),
        ({"input": []}, IMAGE, "must be of shape"),
        ({"input": [[1, 2], [3]]}, TOKEN, "rows of different shapes"),
        ({"input": [[1.5, 2.0]]}, TOKEN, "must be int64, not float64"),
        ({"input": [["a", "b"]]}, TOKEN, "must be int64"),
        ({"input": [[True, False]]}, TOKEN, "must be int64, not bool"),
        ({"input": np.full((1, 1, 8, 8), 1e60).tolist()}, IMAGE, "not finite"),
        ({"input": np.full((1, 1, 8, 8), np.nan).tolist()}, IMAGE, "not finite"),
        ({"input": GOOD, "b": GOOD[:1]}, [*IMAGE, {**IMAGE[0], "name": "b"}], "2 and 1 rows"),
    ],
)
def test_what_does_not_is_refused(inputs: Any, asked: Any, words: str) -> None:
    with pytest.raises(score.SchemaError, match=words):
        score.checked(inputs, asked)


def test_azure_s_entry_points(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZUREML_MODEL_DIR", os.fspath(trained.model))
    score.init()
    example = (trained.model / "example.json").read_text()
    answer = score.run(example)["predictions"]["output"]
    wanted = score.Scorer(check.data_of(trained.model)).answer(json.loads(example)["inputs"])["output"]
    assert np.array_equal(np.asarray(answer, dtype=np.float32), wanted)
    for text in ('{"other": 1}', "[]"):
        with pytest.raises(score.SchemaError):
            score.inputs_of(text)


def changed(trained: Trained, side: str, entry: dict[str, Any] | None, *, more: bool) -> str:
    """The schema with one more entry, or the first one changed or (None) removed."""
    schema = json.loads((check.data_of(trained.model) / "schema.json").read_text())
    first = schema[side][0]
    schema[side] = [] if entry is None else [*([first] if more else []), {**first, **entry}]
    return json.dumps(schema)


@pytest.mark.parametrize(
    ("side", "entry", "more", "words"),
    [
        ("inputs", {"name": "column"}, True, "inputs: 'column' is missing"),
        ("inputs", {"dtype": "float64"}, False, "inputs: 'input' has dtype float32 instead of float64"),
        ("inputs", {"shape": [3, 8, 8]}, False, r"has shape \(n, 1, 8, 8\) instead of \(n, 3, 8, 8\)"),
        ("inputs", None, False, "inputs: 'input' is new"),
        ("outputs", {"shape": [11]}, False, "outputs: 'output' has shape"),
    ],
)
def test_a_changed_schema_is_refused_in_one_line(
    trained: Trained, tmp_path: Any, side: str, entry: dict[str, Any] | None, more: bool, words: str  # noqa: FBT001
) -> None:  # fmt: skip
    old = tmp_path / "old.json"
    old.write_text(changed(trained, side, entry, more=more))
    with pytest.raises(FailedError, match=words) as found:
        check.same_schema(trained.model, old)
    assert "\n" not in str(found.value)


def test_the_same_schema_passes(trained: Trained) -> None:
    check.same_schema(trained.model, trained.model)
