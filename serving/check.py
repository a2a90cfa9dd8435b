"""Is it the same model everywhere? The same inputs to end points and to the model in this process.

Called by `serving.commands`. Answers are equal within `model.TOLERANCE`. What the model refuses, an end point has to
refuse too; only a column too many MLflow's servers drop without a word, so the answer must be the one without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proving_ground.serving import score
from proving_ground.serving.ask import NONE, Answer, Headers, post
from proving_ground.serving.mistakes import FailedError, ServingError
from proving_ground.serving.model import EXAMPLE, TOLERANCE, difference

REPEATS = (1, 4)
"""The example is asked for as it is, and repeated so often: batches of another size take another way."""
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Same:
    """What was found the same: requests, the largest difference, and wrong requests that were refused."""

    requests: int
    difference: float
    refusals: int


def data_of(model: Path) -> Path:
    """The folder with network and schema in a model's folder.

    Raises:
        ServingError: there is none.
    """
    found = sorted(model.rglob(score.SCHEMA))
    if not found:
        raise ServingError(f"{model}: no model: {score.SCHEMA} is missing (pg serving register)")
    return found[0].parent


def loaded(model: Path) -> tuple[score.Scorer, Inputs]:
    """A model in this process, and its example's inputs.

    Raises:
        ServingError: a file of it is damaged.
    """
    data = data_of(model)
    try:
        scorer, example = score.Scorer(data), json.loads((data / EXAMPLE).read_text())["inputs"]
        score.checked(example, scorer.schema["inputs"])
    except Exception as error:  # noqa: BLE001 - torch has many kinds, which share no other
        raise ServingError(f"{data}: is damaged: {first_line(error)}") from None
    return scorer, example


def answer_of(scorer: score.Scorer, inputs: Inputs) -> Mapping[str, Any]:
    """What the model answers in this process.

    Raises:
        ServingError: its network does not take what its schema allows.
    """
    try:
        return scorer.answer(inputs)
    except score.SchemaError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        raise ServingError(f"the network does not take what the model's schema allows: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """What an error is, in a line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def held_to(scorer: score.Scorer, example: Inputs, url: str, headers: Headers = NONE) -> Same:
    """Hold an end point to a model that is loaded (`loaded`).

    Raises:
        FailedError: it answers otherwise, refuses what is right, or takes what is wrong.
    """
    most, requests = 0.0, batches(example)
    for inputs in requests:
        most = max(most, alike(url, scorer, inputs, headers))
    wrong = list(wrong_ones(example, scorer.schema["inputs"][0]))
    for name, inputs in wrong:
        refused(url, scorer, name, inputs, headers)
    return Same(len(requests), most, len(wrong))


def batches(example: Inputs) -> list[Inputs]:
    """The example's rows one by one, together, and several times over."""
    rows = len(next(iter(example.values())))
    single = [{name: values[row : row + 1] for name, values in example.items()} for row in range(rows)]
    return single + [{name: values * times for name, values in example.items()} for times in REPEATS]


def alike(url: str, scorer: score.Scorer, inputs: Inputs, headers: Headers = NONE) -> float:
    """How far an end point's answer is from the model's.

    Raises:
        FailedError: too far, or it is none.
    """
    answer = post(url, {"inputs": inputs}, headers)
    if answer.status != 200:
        raise FailedError(f"{url}: refuses what the model takes, with status {answer.status}: {answer.words[-200:]}")
    found, wanted = predictions(url, answer), answer_of(scorer, inputs)
    if set(found) != set(wanted):
        raise FailedError(f"{url}: answers {sorted(found)}, the model {sorted(wanted)}")
    apart = max(difference(found[name], wanted[name]) for name in wanted)
    if apart > TOLERANCE:
        raise FailedError(f"{url}: answers differ from the model's by {apart:.2g}; allowed are {TOLERANCE:g}")
    return apart


def predictions(url: str, answer: Answer) -> Mapping[str, Any]:
    """Name → rows in an answer."""
    found = answer.document.get("predictions") if isinstance(answer.document, dict) else None
    if not isinstance(found, dict):
        raise FailedError(f"{url}: answers no predictions by name: {answer.words[:100]}")
    return found


def wrong_ones(example: Inputs, asked: Mapping[str, Any]) -> Iterator[tuple[str, Inputs]]:
    """What must be refused: a name too much, one too few, another shape, another dtype."""
    name = asked["name"]
    values = np.asarray(example[name])
    yield "another column", {**example, f"{name}_2": example[name]}
    yield "a column missing", {f"{name}_2": example[name]}
    yield "another shape", {**example, name: np.concatenate([values, values], axis=-1).tolist()}
    yield "another dtype", {**example, name: np.full(values.shape, "one").tolist()}


def refused(url: str, scorer: score.Scorer, name: str, inputs: Inputs, headers: Headers = NONE) -> None:
    """See that an end point refuses inputs, as the model does.

    Raises:
        FailedError: it does not.
    """
    try:
        scorer.answer(inputs)
    except score.SchemaError:
        answer = post(url, {"inputs": inputs}, headers)
    else:
        raise FailedError(f"the model takes {name}")
    known = {it["name"] for it in scorer.schema["inputs"]}
    dropped = {key: it for key, it in inputs.items() if key in known}
    if answer.status == 200 and dropped.keys() == known and len(inputs) > len(known):
        alike(url, scorer, dropped, headers)
    elif not answer.refused:
        raise FailedError(f"{url}: does not refuse {name}: status {answer.status}: {answer.words[:100]}")


def schema_of(path: Path) -> Mapping[str, Any]:
    """The schema in a file, or in a model's folder.

    Raises:
        ServingError: there is none.
    """
    file = data_of(path) / score.SCHEMA if path.is_dir() else path
    try:
        document = json.loads(file.read_text())
        sides = {side: dict(map(entry, document[side])) for side in SIDES}
    except OSError as error:
        raise ServingError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ServingError(f"{file}: is no schema: {score.SCHEMA} of a model is one") from None
    return sides


def entry(found: Mapping[str, Any]) -> tuple[str, tuple[str, tuple[int, ...]]]:
    """Name, dtype and shape of an input or output.

    Raises:
        TypeError: of another kind than they are in a schema.
    """
    name, dtype, shape = found["name"], found["dtype"], found["shape"]
    if not (isinstance(name, str) and isinstance(dtype, str) and all(isinstance(it, int) for it in shape)):
        raise TypeError(name)
    return name, (dtype, tuple(shape))


SIDES = ("inputs", "outputs")


def same_schema(model: Path, old: Path) -> None:
    """Hold a model to an older schema: its clients must not notice.

    Raises:
        FailedError: something is more, less or different; all of it in one line.
    """
    new, before = schema_of(model), schema_of(old)
    if found := [it for side in SIDES for it in changes(side, new[side], before[side])]:
        raise FailedError(f"{model}: the schema has changed since {old}: {'; '.join(found)}")


def changes(side: str, new: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """What differs in one side, in words."""
    yield from (f"{side}: {name!r} is new" for name in new if name not in before)
    yield from (f"{side}: {name!r} is missing" for name in before if name not in new)
    for name in new.keys() & before.keys():
        for what, one, other in zip(("dtype", "shape"), new[name], before[name], strict=True):
            if one != other:
                yield f"{side}: {name!r} has {what} {shown(one)} instead of {shown(other)}"


def shown(value: str | Sequence[int]) -> str:
    """A dtype, or a shape with its rows."""
    return value if isinstance(value, str) else score.told(["n", *value])
