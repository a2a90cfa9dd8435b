"""The reusable GitHub Action: its keys are those of a composite action, and its commands do what it says.

GitHub's runner is not here: `uses` steps and the comment are looked at, not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.reports.synthetic import Knobs, make

ROOT = Path(__file__).parent.parent
ACTION = ROOT / ".github/actions/scaling/action.yml"
TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
STEP = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": TEXT, "id": TEXT, "if": TEXT, "uses": {"type": "string", "pattern": r"^[\w-]+/[\w-]+@v\d+$"},
        "with": {"type": "object"}, "run": TEXT, "shell": {"const": "bash"}, "env": {"type": "object"},
    },
    "oneOf": [{"required": ["uses"]}, {"required": ["run", "shell"]}],
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "description", "inputs", "outputs", "runs"],
    "properties": {
        "name": TEXT,
        "description": TEXT,
        "inputs": {"additionalProperties": {
            "type": "object", "additionalProperties": False, "required": ["description", "default"],
            "properties": {"description": TEXT, "default": {"type": "string"}, "required": {"type": "boolean"}},
        }},
        "outputs": {"additionalProperties": {
            "type": "object", "additionalProperties": False, "required": ["description", "value"],
            "properties": {"description": TEXT, "value": TEXT},
        }},
        "runs": {
            "type": "object", "additionalProperties": False, "required": ["using", "steps"],
            "properties": {"using": {"const": "composite"}, "steps": {"type": "array", "items": STEP}},
        },
    },
}  # fmt: skip
"""What GitHub's page on metadata syntax allows of a composite action, as far as it is used here."""


def action() -> dict[str, Any]:
    document = yaml.safe_load(ACTION.read_text())
    assert isinstance(document, dict)
    return document


def step(name: str) -> dict[str, Any]:
    return next(it for it in action()["runs"]["steps"] if it.get("name") == name)


def test_its_keys_are_those_of_a_composite_action() -> None:
    jsonschema.validate(action(), SCHEMA)


@pytest.mark.parametrize("key", ["shel", "runs-on", "env2"])
def test_a_wrong_key_is_seen(key: str) -> None:
    broken = action()
    broken["runs"]["steps"][1][key] = "bash"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_every_input_is_used_and_every_one_used_is_there() -> None:
    used = set(re.findall(r"inputs\.([\w-]+)", ACTION.read_text()))
    assert used == set(action()["inputs"])
    named = set(re.findall(r"steps\.([\w-]+)\.outputs", ACTION.read_text()))
    assert named == {it["id"] for it in action()["runs"]["steps"] if "id" in it}


def test_no_input_is_pasted_into_a_script() -> None:
    """What a pull request may set must come through the environment."""
    assert [it["name"] for it in action()["runs"]["steps"] if "${{" in it.get("run", "")] == []


def shell(name: str, cwd: Path, **inputs: str) -> int:
    """Run the script of a step, with `pg` as the installed command would be; its exit status."""
    script = cwd / "pg"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m proving_ground "$@"\n')
    script.chmod(0o755)
    env = {**os.environ, "PATH": f"{cwd}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **inputs,
           "GITHUB_OUTPUT": str(cwd / "output"), "GITHUB_STEP_SUMMARY": str(cwd / "summary")}  # fmt: skip
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]]
    return subprocess.run(command, cwd=cwd, env=env, check=False).returncode


def test_it_measures(tmp_path: Path) -> None:
    assert shell("Measure", tmp_path, SUITE="smoke", CLUSTER="fake", NODES="1,2") == 0
    assert (tmp_path / "output").read_text().startswith(f"run={tmp_path}/runs/smoke/2")


@pytest.mark.parametrize(("bound", "status"), [("1", 0), ("1e12", 1)])
def test_the_constraints_decide(tmp_path: Path, bound: str, status: int) -> None:
    run = make(tmp_path / "runs", Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    (tmp_path / "constraints.toml").write_text(f'require = ["throughput >= {bound}"]')
    assert shell("Judge", tmp_path, REQUIRE="constraints.toml", BASELINE=str(run.path)) == 0
    assert "constraints: " in (tmp_path / "summary").read_text()
    assert (tmp_path / "scaling-tests.xml").exists()
    assert shell("Verdict", tmp_path) == status
