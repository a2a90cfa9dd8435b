"""The schedule that takes stacks down and tries them again: a fresh checkout has all that it needs, and no more."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from proving_ground.infra import passwords
from proving_ground.infra.config import ROOT

WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "reap.yml").read_text())
JOB = WORKFLOW["jobs"]["reap"]
RUNS = [step["run"] for step in JOB["steps"] if "run" in step]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = {Requirement(text).name for text in PROJECT["dependencies"]} - {"argcomplete", "pyyaml"}
IMPORTS = """
import importlib, pathlib, pkgutil, sys
from proving_ground import infra
for found in pkgutil.walk_packages(infra.__path__, "proving_ground.infra."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_environment_is_where_pulumi_looks_for_it() -> None:
    where = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["runtime"]["options"]["virtualenv"]
    assert f"python -m venv {where}\n" in RUNS[0]
    assert re.findall(r"(\S+) -m infra (\w+)", RUNS[1]) == [(f"{where}/bin/python", it) for it in ("reap", "retry")]


def test_it_installs_what_infra_imports_and_no_more() -> None:
    """PyTorch is a base dependency: some gigabytes, every hour."""
    assert RUNS[0].strip().endswith('-r "$RUNNER_TEMP/infra.txt" argcomplete pyyaml')
    found = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
        capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    by_module = importlib.metadata.packages_distributions()
    imported = {name.lower() for module in found for name in by_module.get(module, [])}
    assert {"pulumi", "pulumi-kubernetes", "pulumi-azure-native", "pyyaml"} <= {it.replace("_", "-") for it in imported}
    assert not imported & BASE


def test_the_list_of_packages_is_the_extra(tmp_path: Any) -> None:
    lines = "\n".join(RUNS[0].splitlines()[:2]).replace("python -c", f"{sys.executable} -c")
    subprocess.run(["bash", "-c", lines], cwd=ROOT, env={**os.environ, "RUNNER_TEMP": str(tmp_path)}, check=True)
    assert (tmp_path / "infra.txt").read_text().splitlines() == PROJECT["optional-dependencies"]["infra"]


@pytest.mark.parametrize("variable", [*passwords.VARIABLES.values(), "PULUMI_CONFIG_PASSPHRASE", "PULUMI_ACCESS_TOKEN"])
def test_secrets_come_from_the_repositorys_and_only_by_the_environment(variable: str) -> None:
    assert JOB["env"][variable] == f"${{{{ secrets.{variable} }}}}"
    assert variable not in "\n".join(RUNS)
