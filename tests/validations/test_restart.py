"""The end of a sitting: what it has started is taken down before it goes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SITTING = """
import pathlib, sys
from tests.validations import __main__ as top, chaos_runs, restart
chaos_runs.ROOT, chaos_runs.SOON_S = pathlib.Path(sys.argv[1]), 0.2
restart.main = lambda words: chaos_runs.chaos_run(chaos_runs.ROOT, "kill") and 0
sys.exit(top.main(["restart"]))
"""
RUN = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path("ended").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path("began").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_is_ended_with_its_sitting(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "proving_ground").mkdir()
    (tmp_path / "proving_ground" / "__init__.py").touch()
    (tmp_path / "proving_ground" / "chaos.py").write_text(RUN)
    with subprocess.Popen([sys.executable, "-c", SITTING, str(tmp_path)], stderr=subprocess.PIPE) as sitting:
        while not (tmp_path / "began").exists() and sitting.poll() is None:
            time.sleep(0.1)
        sitting.send_signal(number)
        _, said = sitting.communicate(timeout=30)
    assert sitting.returncode == 130
    assert b"interrupted; what was measured is kept" in said
    assert (tmp_path / "ended").exists()
