"""`pg`: one way in to all programs, its completion, and packages of others by the names of our folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proving_ground.__main__ import PROGRAMS

ROOT = Path(__file__).parent.parent.parent


def pg(*words: str, cwd: Path = ROOT, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(it) for it in (first, ROOT) if it)
    command = [sys.executable, "-P", "-m", "proving_ground", *words]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--version"], "proving-ground "),
        (["bench", "--version"], "proving-ground "),
        (["report", "--help"], "pg reports check RUN"),
        (["infra", "check", "local"], "local: fine"),
        (["train", "--help"], "profile"),
        (["chaos", "plan", "--suite", "smoke", "--cluster", "fake"], "node_kill"),
    ],
)
def test_every_program_is_behind_it(words: list[str], said: str) -> None:
    done = pg(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "pg: the following arguments are required: PROGRAM; help: pg --help\n"),
        (["bnch", "run"], "did you mean 'bench'?; help: pg --help\n"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str) -> None:
    done = pg(*words)
    assert done.returncode == 2
    assert done.stderr.endswith(said)
    assert done.stderr.count("\n") == 1


OTHERS = ("bench", "reports", "training", "monitoring", "chaos")


def test_packages_of_somebody_else_by_names_of_our_folders_are_not_taken_for_ours(tmp_path: Path) -> None:
    """NanoGPT has a `bench.py`, and who trains has a `training/`."""
    for name in OTHERS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('somebody else')")
    words = ("bench", "run", "--suite", "smoke", "--cluster", "fake", "--runs", str(tmp_path / "runs"))
    for first in (None, tmp_path):
        done = pg(*words, cwd=tmp_path, first=first)
        assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs" / "smoke").glob("2*/report.html"))) == 2
    command = [sys.executable, "-m", "proving_ground", "bench", "list"]  # Python itself looks in here first
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_is_one_package() -> None:
    """A second name of a module would be a second module: its classes would be others."""
    assert [it for it in PROGRAMS if not (ROOT / "proving_ground" / it).samefile(ROOT / it)] == []
    words = re.compile(rf"^\s*(from|import) ({'|'.join(PROGRAMS)})\b", re.MULTILINE)
    files = [it for folder in (*PROGRAMS, "proving_ground", "tests") for it in (ROOT / folder).rglob("*.py")]
    assert [it for it in files if words.search(it.read_text())] == []
    assert words.search(f"    from {'bench'} import rundir")


@pytest.mark.parametrize(
    ("line", "offered"),
    [("pg be", {"bench"}), ("pg bench l", {"list", "logs"}), ("pg bench plan --suite sm", {"smoke"}),
     ("pg report comp", {"compare"})],
)  # fmt: skip
def test_a_tab_offers_what_can_stand_there(line: str, offered: set[str], tmp_path: Path) -> None:
    script = tmp_path / "answer"
    env = {
        **os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
        "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_STDOUT_FILENAME": str(script), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    subprocess.run([sys.executable, "-m", "proving_ground"], cwd=tmp_path, env=env, check=False)
    assert set(script.read_text().replace("\x0b", " ").split()) == offered
