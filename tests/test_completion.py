"""The shell's completion: what stands behind a Tab, as argcomplete's own shell function asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reports.synthetic import RUN_ID, Knobs, make

ROOT = Path(__file__).parent.parent


def completed(line: str, folder: Path, *, words: int = 3) -> set[str]:
    """What is offered behind a command line; `words` is how many of its words are the program's name."""
    script = folder / "answer"
    env = {
        **os.environ, "_ARGCOMPLETE": str(words), "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
        "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_STDOUT_FILENAME": str(script), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    program = line.split()[2]
    subprocess.run([sys.executable, "-m", program], cwd=folder, env=env, check=False, capture_output=True)
    return set(script.read_text().replace("\x0b", "\n").split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    make(folder / "runs", Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    return folder


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("python -m bench l", {"list", "logs"}),
        ("python -m bench plan --suite sm", {"smoke"}),
        ("python -m bench logs 2026", {RUN_ID}),
        ("python -m bench run --cluster ss", {"ssh:"}),
        ("python -m chaos run --only node_k", {"node_kill"}),
        ("python -m reports scal", {"scaling"}),
        ("python -m reports comp", {"compare"}),
        ("python -m monitoring ava", {"availability"}),
        ("python -m infra out", {"outputs"}),
        ("python -m infra cost --stack stag", {"staging"}),
        ("python -m training light", {"lighthouse"}),
        ("python -m training plan --mem", {"--memory"}),
        ("python -m serving lo", {"load"}),
        ("python -m loop sta", {"status"}),
        ("python -m search run --suite sm", {"smoke"}),
        ("python -m search run --algorithm op", {"optuna"}),
    ],
)
def test_a_tab_offers_what_can_stand_there(line: str, offered: set[str], folder: Path) -> None:
    assert {it.removesuffix("\\") for it in completed(line, folder)} == offered
