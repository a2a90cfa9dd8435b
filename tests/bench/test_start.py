"""The first second: a real Ctrl-C at any moment is one line and status 130, whatever is being imported or asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BEGIN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from bench.start import start; print('begun', flush=True); start(sys.argv[1], sys.argv[2:])"
)
"""As `python -m PROGRAM`, from the first line of our own: what Python does before, nobody here can catch."""
MOMENTS = (0.0, 0.05, 0.2, 0.6, 1.0)
LINES = {
    "bench": ("run", "--suite", "smoke", "--no-report"),
    "chaos": ("run", "--suite", "smoke"),
    "reports": ("compare", "a", "b"),
    "monitoring": ("export", "RUNS/any/latest", "--port", "0"),
}


def interrupted(after_s: float, program: str, *words: str, begin: str = BEGIN) -> tuple[int, str]:
    """Status and stderr of a command that gets a Ctrl-C so long after its first line of our own."""
    with subprocess.Popen(
        [sys.executable, "-c", begin, program, *words], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize("after_s", MOMENTS)
@pytest.mark.parametrize("program", LINES)
def test_a_ctrl_c_while_it_starts_is_one_line(program: str, after_s: float, tmp_path: Path) -> None:
    words = [*(it.replace("RUNS", str(tmp_path / "runs")) for it in LINES[program]), "--runs", str(tmp_path / "runs")]
    (tmp_path / "runs" / "any").mkdir(parents=True)
    status, err = interrupted(after_s, program, *words)
    assert "Traceback" not in err
    if program == "reports" and status == 2:  # it was done before: these runs do not exist
        assert "none yet" in err
        return
    assert status == 130
    assert err.splitlines()[-1].startswith(f"{program}: interrupted")
    assert [line for line in err.splitlines() if "interrupted" in line] == err.splitlines()[-1:]


def test_without_it_a_ctrl_c_is_a_traceback() -> None:
    """The mutant: the command line is imported as any module is."""
    status, err = interrupted(
        0.05, "reports", begin=BEGIN.replace("start(sys.argv[1], sys.argv[2:])", "import reports.cli")
    )
    assert "Traceback" in err
    assert status != 130


def test_what_a_shell_starts_in_the_background_is_left_alone(tmp_path: Path) -> None:
    begin = BEGIN.replace("signal.default_int_handler", "signal.SIG_IGN")
    status, err = interrupted(0.05, "bench", "list", "--runs", str(tmp_path), begin=begin)
    assert (status, err) == (0, "")
