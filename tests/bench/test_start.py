"""The first second: a real Ctrl-C at any moment is one line and status 130, whatever is being imported or asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interrupts import ROOT, guarded, interrupted

BEGIN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from proving_ground.bench.start import start; print('begun', flush=True); start(sys.argv[1], sys.argv[2:])"
)
"""As `python -m PROGRAM`, from the first line of our own: what Python does before, nobody here can catch."""
MOMENTS = (0.0, 0.05, 0.2, 0.6, 1.0)
LINES = {
    "bench": ("run", "--suite", "smoke", "--no-report"),
    "chaos": ("run", "--suite", "smoke"),
    "reports": ("compare", "a", "b"),
    "monitoring": ("export", "RUNS/any/latest", "--port", "0"),
    "search": ("run", "--suite", "smoke"),
    "serving": ("check", "nowhere"),
    "loop": ("status",),
}
GUARDED = guarded("signal")
OTHERS = {
    "training": (GUARDED + "runpy.run_module(sys.argv.pop(1), run_name='__main__')", ("plan", "--ranks", "2")),
    "pg": (GUARDED + "from proving_ground.__main__ import main; main()", ("train", "plan", "--ranks", "2")),
}
"""Programs that begin in another way → how, and what they are asked."""
DONE = {"reports": 2, "serving": 2, "loop": 0, "training": 0, "pg": 0}
"""What is asked so little that it may be done before → its status."""


@pytest.mark.parametrize("after_s", MOMENTS)
@pytest.mark.parametrize("program", [*LINES, *OTHERS])
def test_a_ctrl_c_while_it_starts_is_one_line(program: str, after_s: float, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    (tmp_path / "runs" / "any").mkdir(parents=True)
    start = GUARDED + BEGIN.rpartition("default_int_handler);")[2].replace("print('begun', flush=True); ", "")
    begin, words = OTHERS.get(program) or (start, (*LINES[program], "--runs", runs))
    named = () if program == "pg" else (program,)
    status, err = interrupted(begin, after_s, *named, *(it.replace("RUNS", runs) for it in words))
    assert "Traceback" not in err
    if status == DONE.get(program):
        assert "interrupted" not in err
        return
    assert status == 130
    assert err.splitlines()[-1].startswith(f"{'training' if program == 'pg' else program}: interrupted")
    assert [line for line in err.splitlines() if "interrupted" in line] == err.splitlines()[-1:]


def test_without_it_a_ctrl_c_is_a_traceback() -> None:
    """The mutant: the command line is imported as any module is."""
    begin = BEGIN.replace("start(sys.argv[1], sys.argv[2:])", "import proving_ground.reports.commands")
    status, err = interrupted(begin, 0.05, "reports")
    assert "Traceback" in err
    assert status != 130


def test_what_a_shell_starts_in_the_background_is_left_alone(tmp_path: Path) -> None:
    begin = BEGIN.replace("signal.default_int_handler", "signal.SIG_IGN")
    status, err = interrupted(begin, 0.05, "bench", "list", "--runs", str(tmp_path))
    assert (status, err) == (0, "")


@pytest.mark.parametrize("program", LINES)
def test_an_interpreter_without_the_packages_is_told_in_one_line(program: str) -> None:
    """`-S`: without what is installed, as where nobody has activated the environment."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", program, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"{program}: ")


def test_what_a_command_alone_needs_is_told_in_one_line_too() -> None:
    """Its modules are imported when it is called."""
    begin = (
        "import sys; sys.modules['pandas'] = None; from proving_ground.bench.start import start; "
        "start('reports', ['index'])"
    )
    done = subprocess.run([sys.executable, "-c", begin], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "has no package pandas" in done.stderr
