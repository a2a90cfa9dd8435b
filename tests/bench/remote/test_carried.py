"""What is carried to a node runs there: Python 3.9, the standard library, and nothing else of the project."""

from __future__ import annotations

import ast
import io
import sys
import zipfile
from pathlib import Path

import pytest

from proving_ground.bench.clusters.remote import carried

AGENT = sorted((carried.OURS / "bench" / "agent").glob("*.py"))
ALONE = ("boot.py", "left.py")


@pytest.mark.parametrize("file", AGENT, ids=lambda file: file.name)
def test_the_agent_is_python_3_9_and_needs_the_standard_library_alone(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    names = {it.name for node in ast.walk(tree) if isinstance(node, ast.Import) for it in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    foreign = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    ours = {it for it in foreign if it.startswith("proving_ground.bench.agent")}
    assert foreign == (set() if file.name in ALONE else ours)


def test_the_archives_have_what_runs_there_and_are_the_same_each_time() -> None:
    for made, needed in (
        (carried.agent(), {"__main__.py", "proving_ground/__init__.py", "proving_ground/bench/agent/serve.py"}),
        (
            carried.training(),
            {f"proving_ground/training/{it}" for it in ("__main__.py", "warm.py", "profiles/resnet50-cpu.json")},
        ),
    ):
        with zipfile.ZipFile(io.BytesIO(made)) as archive:
            assert needed <= set(archive.namelist())
            assert not any("__pycache__" in name for name in archive.namelist())
    before = carried.agent()
    carried.agent.cache_clear()
    assert carried.agent() == before
    assert len(before) < 30_000  # it goes into a batch script
