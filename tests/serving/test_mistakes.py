"""What was asked wrong, or answered wrong, is one line: without a server, or with a small one."""

from __future__ import annotations

import json
import shutil
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from proving_ground.serving import ask, check, cli, commands, load, model, registry
from proving_ground.serving.mistakes import FailedError, ServingError
from tests.serving.stub import end_point

pytestmark = pytest.mark.timeout(300)  # torch, on a busy machine


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that no training has made: what `check` needs of one."""
    folder = tmp_path_factory.mktemp("small")
    example = torch.ones(3, 4)
    model.write_network(nn.Linear(4, 2), example, folder)
    model.write_json(folder / "example.json", {"inputs": {"input": example.tolist()}})
    return folder


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/score", "http://127.0.0.1:abc/score", "http://[::1/score"])
def test_an_address_that_is_none_is_a_mistake(url: str) -> None:
    with pytest.raises(ServingError, match="must be http://HOST:PORT/score"):
        ask.post(url, {})


def test_the_query_of_an_address_is_kept() -> None:
    with end_point(lambda handler, _: (200, json.dumps(handler.path).encode())) as url:
        assert ask.post(f"{url}?version=2", {}).document == "/score?version=2"


@pytest.mark.parametrize(("status", "taken"), [(400, False), (404, True), (429, True), (500, True)])
def test_only_status_400_refuses_what_is_wrong(small: Path, status: int, taken: bool) -> None:  # noqa: FBT001
    scorer, example = check.loaded(small)
    wrong = {"input_2": example["input"]}
    with end_point(lambda *_: (status, b"no")) as url:
        if not taken:
            check.refused(url, scorer, "a column missing", wrong)
            return
        with pytest.raises(FailedError, match=f"does not refuse a column missing: status {status}"):
            check.refused(url, scorer, "a column missing", wrong)


def test_a_header_s_value_comes_out_of_a_variable(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KEY", "s3cret")
    asked = []

    def answer(handler: BaseHTTPRequestHandler, _: bytes) -> tuple[int, bytes]:
        asked.append(handler.headers["Authorization"])
        return 401, b""

    with end_point(answer) as url:
        assert cli.main(["check", str(small), "--endpoint", url, "--header", "Authorization=$KEY"]) == 1
        assert asked == ["s3cret"]
        assert cli.main(["check", str(small), "--endpoint", url, "--header", "Authorization=$NOT_SET_1"]) == 2
        with pytest.raises(SystemExit) as ended:
            cli.main(["check", str(small), "--endpoint", url, "--header", "Authorization=s3cret"])
        assert ended.value.code == 2
    assert "s3cret" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("output", ["abc", {"a": 1}, None, [[10**400]]])
def test_an_answer_that_is_no_array_differs(small: Path, output: object) -> None:
    content = json.dumps({"predictions": {"output": output}}).encode()
    with end_point(lambda *_: (200, content)) as url, pytest.raises(FailedError, match="answers differ"):
        check.held_to(*check.loaded(small), url)


@pytest.mark.parametrize("name", ["network.pt2", "example.json", "schema.json"])
def test_a_damaged_model_is_one_line(small: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(small, tmp_path / "broken")
    (tmp_path / "broken" / name).write_text("{}")
    with pytest.raises(ServingError, match="is damaged") as found:
        check.loaded(tmp_path / "broken")
    assert "\n" not in str(found.value)


def test_a_schema_that_the_network_contradicts_is_one_line(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "other")
    schema = json.loads((small / "schema.json").read_text())
    (asked,) = schema["inputs"]
    asked["shape"][-1] *= 2
    example = {asked["name"]: np.zeros((2, *asked["shape"])).tolist()}
    (tmp_path / "other" / "schema.json").write_text(json.dumps(schema))
    (tmp_path / "other" / "example.json").write_text(json.dumps({"inputs": example}))
    scorer, inputs = check.loaded(tmp_path / "other")
    with pytest.raises(ServingError, match="does not take what the model's schema allows") as found:
        check.answer_of(scorer, inputs)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("change", [{"dtype": 1}, {"shape": ["n"]}, {"name": 3}, {"shape": 4}])
def test_a_schema_of_other_kinds_is_none(small: Path, tmp_path: Path, change: dict[str, object]) -> None:
    schema = json.loads((small / "schema.json").read_text())
    schema["inputs"][0] |= change
    (tmp_path / "old.json").write_text(json.dumps(schema))
    with pytest.raises(ServingError, match="is no schema"):
        check.same_schema(small, tmp_path / "old.json")


@pytest.mark.filterwarnings("ignore")  # SQLAlchemy's, of MLflow's own tables
def test_a_registry_whose_driver_is_missing_is_a_mistake() -> None:
    with pytest.raises(ServingError, match="needs what is not installed"), registry.registry("mysql://u:p@here/db"):
        pass


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--endpoint", ","], "has an empty address"),
        (["--endpoint", "http://h/score", "--engine", "mlflow"], "not of --endpoint"),
        (["--endpoint", "http://h/score", "--replicas", "1"], "not of --endpoint"),
    ],
)
def test_what_a_load_would_not_do_is_refused(
    small: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(["load", str(small), *words])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert said in capsys.readouterr().err


def test_a_load_that_was_not_recorded_whole_has_failed(tmp_path: Path) -> None:
    run = load.new_run(tmp_path)
    with pytest.raises(FailedError, match="is missing"):
        commands.reported(run)
