"""Every name that a person can mistype is answered by the one that was meant, in one line, with status 2."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.reports.synthetic import RUN_ID, Knobs, make

MISSPELT = {
    "bench lst": "list",
    "bench plan --sute smoke": "--suite",
    "bench plan --suite smok": "smoke",
    "bench plan --suite smoke --cluster lcal": "local",
    "bench plan --suite smoke --cluster ssh:hosts=a,volum=/x": "volume",
    "bench plan --suite smoke --case digit": "digits",
    "bench plan --suite bad.toml": "warmup_steps",
    "bench logs scalin": "scaling",
    "bench run --resume 20260102T030405Z-abc": RUN_ID,
    "bench run --from scalng": "scaling",
    "bench logs --node n11": "n1",
    "bench logs --trial t01": "t001",
    "chaos rum": "run",
    "chaos plan --suite kil": "kill",
    "chaos plan --only node_kil": "node_kill",
    "chaos run --trails 3": "--trials",
    "chaos plan --suite aimed.toml": "majority",
    "reports scalin": "scaling",
    "reports compar a b": "compare",
    "reports --no-htm scaling --quie --stric --nhtml": "--no-html",
    "reports compare scaling:digit scaling": "digits",
    "reports trend --suite scaleing": "scaling",
    "reports check scaling --require trainin": "training",
    "monitoring liv": "live",
    "monitoring advice scalin": "scaling",
    "search rn": "run",
    "search run --suite smok": "smoke",
    "search run --suite smoke --algorithm optima": "optuna",
    "search run --trails 3": "--trials",
    "search run --set optimiser=sgd": "optimizer",
    "infra cots dev": "cost",
    "infra cost lcoal": "local",
}
BAD = """
title = "T"
nodes = [1]
[[case]]
name = "own"
workload = "digits"
steps = 8
warmup_step = 2
estimated_step_s = 0.1
batch_per_node = 8
"""
AIMED = """
title = "T"
nodes = [3]
[[case]]
name = "own"
workload = "digits"
mechanism = "restart"
min_nodes = 2
steps = 500
estimated_step_s = 0.1
global_batch = 96
[[case.faults]]
kind = "node_kill"
target = "majorty"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    make(folder / "runs", Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    for name in ("t001.n1.0", "t001.n2.0"):
        (folder / "runs" / "latest" / "logs" / f"{name}.log").write_text("hello\n")
    (folder / "bad.toml").write_text(BAD)
    (folder / "aimed.toml").write_text(AIMED)
    return folder


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)


def told(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says on stderr; it has to end with 2."""
    program, *words = line.split()
    module = importlib.import_module(
        "proving_ground.infra.__main__" if program == "infra" else f"proving_ground.{program}.cli"
    )
    try:
        status = module.main(words)
    except SystemExit as end:
        status = end.code
    assert status == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("line", MISSPELT)
def test_the_name_that_was_meant_is_said(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    said = told(line, capsys)
    assert said.count("\n") == 1
    assert f"did you mean {MISSPELT[line]!r}?" in said


@pytest.mark.parametrize("line", ["bench zzzz", "bench plan --suite zzzz", "chaos plan --only zzzz", "reports zzzz"])
def test_nothing_is_guessed_where_nothing_is_near(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    said = told(line, capsys)
    assert "did you mean" not in said
    assert "allowed: " in said
