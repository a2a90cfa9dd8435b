"""Thirty things that a newcomer wants to do, each by what the README or a page that it links says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.cli import main as bench
from proving_ground.chaos.cli import main as chaos

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
README = (ROOT / "README.md").read_text()
TASKS: list[dict[str, Any]] = tomllib.loads((HERE / "tasks.toml").read_text())["task"]
STARTS = re.compile(r"(\bpg (?:bench (?:run|plan)|chaos (?:run|plan|replay))\b(?! --cluster))([^|;>)\n]*)")
"""A command that starts something, or says what would be."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As after an hour: a smoke run and a chaos run are there, and the README's `mine.toml`."""
    folder = tmp_path_factory.mktemp("newcomer")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr("signal.signal", lambda *_: None)
        chaos(["run", "--suite", "smoke", "--cluster", "fake", "--quiet"])
        (folder / "runs" / "smoke").rename(folder / "runs" / "smoke-chaos")
        assert bench(["run", "--suite", "smoke", "--cluster", "fake", "--quiet"]) == 0
    block = next(it for it in re.findall(r"(?:^    .*\n|^\n)+", README, re.MULTILINE) if 'title = "Mine"' in it)
    (folder / "mine.toml").write_text(textwrap.dedent(block))
    return folder


def done(task: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """The script, run as it would be typed."""
    script = task["script"] if task.get("real") else STARTS.sub(r"\1\2 --cluster fake", task["script"])
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CLONE": str(ROOT), "COLUMNS": "160",
    }  # fmt: skip
    return subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("task", TASKS, ids=lambda it: it["goal"])
def test_a_newcomer_gets_there(task: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    own = shutil.copytree(folder, tmp_path / "own", symlinks=True)
    found = done(task, own)
    said = found.stdout + found.stderr
    assert re.search(task["says"], said), said
    assert found.returncode == task.get("status", 0), said
    assert "Traceback" not in said


def test_there_are_thirty() -> None:
    assert len(TASKS) == len({it["goal"] for it in TASKS}) == 30


def test_nine_of_ten_need_the_readme_alone() -> None:
    """And `--help`, which it names."""
    assert sum(it["page"] in ("README.md", "help") for it in TASKS) >= 27
    assert "`--help`" in README


@pytest.mark.parametrize("task", TASKS, ids=lambda it: it["goal"])
def test_it_uses_only_what_its_page_says(task: dict[str, Any]) -> None:
    """Commands and options stand on the README or on its page; `help`: or where `--help` of both says so."""
    page, commands = task["page"], re.findall(r"\bpg (\w+) (\w+)", task["script"])
    text = README
    if page == "help":
        assert [program for program, _ in commands if f"pg {program} " not in README] == []
        text += "".join(helped(*words) for both in commands for words in (both[:1], both))
    elif page != "README.md":
        linked = {it.partition("#")[0] for it in re.findall(r"\]\(([^)]+)\)", README)}
        pages = {it.partition("#")[0] for it in re.findall(r"\]\(([^)]+)\)", (ROOT / "docs/README.md").read_text())}
        assert page in linked | {f"docs/{it}" for it in pages}, f"{page} is not linked by the README"
        text += (ROOT / page).read_text()
    for program, command in commands:
        listed = re.search(rf"^ +{command} +\w", text, re.MULTILINE)  # in the program's help
        assert f"pg {program} {command}" in text or listed or program == "reports", (program, command)
    assert [it for it in re.findall(r"--[a-z][\w-]+", task["script"]) if it not in text] == []


@cache
def helped(*words: str) -> str:
    """What a program, or one of its commands, says of itself."""
    asked = [sys.executable, "-m", "proving_ground", *words, "--help"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
