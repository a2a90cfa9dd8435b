"""`pg`: one way in to all programs, its completion, and packages of others by our names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
        (["report", "--help"], "python -m reports check RUN"),
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


def test_a_package_of_somebody_else_by_our_name_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "chaos").mkdir()
    (tmp_path / "chaos" / "__init__.py").write_text("")
    done = pg("chaos", "list", first=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"pg: the package 'chaos' at {tmp_path} comes before ours at {ROOT}; run pg elsewhere\n"


OTHERS = ("bench", "reports", "training", "monitoring", "chaos")


def test_files_of_somebody_else_by_our_names_are_not_taken_for_ours(tmp_path: Path) -> None:
    for name in OTHERS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('somebody else')")
    done = pg("bench", "run", "--suite", "smoke", "--cluster", "fake", "--runs", str(tmp_path / "runs"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "latest" / "report.html").exists()
    command = [sys.executable, "-m", "proving_ground", "bench", "list"]  # Python itself looks in here first
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 2
    assert done.stderr.startswith(f"pg: the package 'bench' at {tmp_path}/bench.py comes before ours at {ROOT}; ")


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
