"""The shell's completion: what stands behind a Tab, as argcomplete's own shell function asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proving_ground.__main__ import PROGRAMS
from proving_ground.bench.start import MAINS
from proving_ground.reports import commands
from proving_ground.reports.arguments import COMMANDS
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


SLOW = ("kubernetes", "locust", "matplotlib", "mlflow", "optuna", "pandas", "pulumi", "ray", "scipy", "torch")
"""What takes a second or more to import."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_and_a_tab_wait_for_nothing_that_is_slow(program: str) -> None:
    assert not loaded(f"proving_ground.{program}.{'__main__' if program in MAINS else 'cli'}")


def test_what_makes_a_report_is_slow() -> None:
    """The mutant of the test before: a command line that imports what its commands do."""
    assert loaded("proving_ground.reports.commands") >= {"matplotlib", "pandas"}


def loaded(module: str) -> set[str]:
    """Of the slow ones those that a module brings along."""
    words = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split()) & set(SLOW)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_reports_has_its_function(command: str) -> None:
    assert callable(getattr(commands, COMMANDS[command][0]))
