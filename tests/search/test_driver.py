"""A driver belongs to one command, and a search to one driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDirError, held
from proving_ground.search import ledger, store, watch
from proving_ground.search.driver import LOCK
from proving_ground.search.store import SearchDir
from tests.programs import program
from tests.search.recorded import three, write

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 120.0  # of a busy machine
pytestmark = pytest.mark.timeout(300)


def driver(run_dir: SearchDir, parent: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "proving_ground.search.driver", str(run_dir.path), str(parent)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def until(what: str, true: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def drivers(runs: Path) -> list[Path]:
    """Processes of drivers that write below this folder."""
    found = []
    for it in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = it.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"proving_ground.search.drive" in b" ".join(words) and any(
            word.startswith(os.fsencode(runs)) for word in words
        ):
            found.append(it.parent)
    return found


def test_a_driver_whose_command_is_gone_writes_nothing(tmp_path: Path) -> None:
    run_dir = write(tmp_path, three())
    before = run_dir.ledger.read_bytes()
    assert driver(run_dir, 1).returncode == 1
    assert run_dir.ledger.read_bytes() == before


def test_a_search_has_one_driver(tmp_path: Path) -> None:
    run_dir = write(tmp_path, three())
    before = run_dir.ledger.read_bytes()
    with held(run_dir, LOCK):
        refused = driver(run_dir, os.getpid())
    assert (refused.returncode, run_dir.ledger.read_bytes()) == (1, before)
    assert "in progress" in refused.stdout
    assert "Traceback" not in refused.stderr


def test_a_command_waits_for_the_driver_of_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = write(tmp_path, three())
    monkeypatch.setattr(watch, "END_S", 0.0)
    hold = "import sys, pathlib, bench.rundir as r\n"
    hold += "with r.held(r.RunDir(pathlib.Path(sys.argv[1])), sys.argv[2]): print(flush=True), input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(run_dir.path), LOCK], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(RunDirError, match="another driver"):
            watch.await_the_last(run_dir)
        holder.communicate(b"\n")
    watch.await_the_last(run_dir)


def test_a_command_that_is_killed_while_its_driver_imports_takes_it_along(tmp_path: Path) -> None:
    words = program("search", "run", "--suite", "smoke", "--quiet", "--runs", str(tmp_path))
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
        until("no driver was started", lambda: drivers(tmp_path) or command.poll() is not None)
        command.kill()
    (run_dir,) = store.every(tmp_path)
    until("the driver stays", lambda: not drivers(tmp_path))
    time.sleep(0.5)
    assert ledger.read(run_dir.ledger) == []
    assert not run_dir.ray.exists()
