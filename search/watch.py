"""Starts the driver, tells people how the search gets on, and takes everything down. Called by `search.commands`.

It imports no Ray. Whatever the driver starts becomes a child of this process once its parent is gone, so nothing is
left when it ends, Ctrl-C included; if this process is killed, the kernel ends the driver, and Ray with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from proving_ground.bench.agent import kernel
from proving_ground.bench.agent.processes import descendants
from proving_ground.bench.rundir import RunDirError, in_progress
from proving_ground.search import ledger
from proving_ground.search.driver import LOCK
from proving_ground.search.store import SearchDir
from proving_ground.training.typed import one_line

LOOK_S = 0.5
END_S = 20.0  # for all processes to be gone
PATIENCE = 4  # drivers in a row that died before any trial ended: Ray gives itself 30 s to start
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_worker_niceness": "0",  # else trials give way to whatever else the machine does
    "RAY_enable_metrics_collection": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the ledger has what they would write
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # nothing is restored from Tune's own
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "PYTHONWARNINGS": "ignore",
}
"""Of the driver's environment."""

Show = Callable[[Mapping[str, ledger.Trial], float], None]


class SearchFailed(RuntimeError):  # noqa: N818 - a finding: exit status 1
    """The search did not come to its end; one line with what and how it goes on."""


def run(run_dir: SearchDir, show: Show, place: str) -> None:
    """Let drivers run until the search is over.

    Raises:
        SearchFailed: they die again and again.
    """
    kernel.adopt_orphans()
    fruitless = 0
    try:
        while fruitless < PATIENCE:
            before = ended(run_dir)
            if drive(run_dir, show) == 0:
                return
            fruitless = 0 if ended(run_dir) > before else fruitless + 1
    finally:
        take_down(run_dir)
    raise SearchFailed(f"{last_words(run_dir)}; what ended is kept: pg search resume {run_dir.run_id}{place}")


def ended(run_dir: SearchDir) -> int:
    """How many trials have ended."""
    return sum(it.ended for it in ledger.trials(ledger.read(run_dir.ledger)).values())


def drive(run_dir: SearchDir, show: Show) -> int:
    """One sitting; the driver's exit status."""
    await_the_last(run_dir)
    clear(run_dir)
    environment = {it: value for it, value in os.environ.items() if not it.startswith(("RAY_", "TUNE_"))}
    environment |= SETTINGS | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    reader = ledger.Reader(run_dir.ledger)
    begin, own = time.monotonic(), ledger.sittings(reader.read()) + 1
    with (run_dir.logs / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "proving_ground.search.driver", str(run_dir.path), str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment,
        )  # fmt: skip
    try:
        while driver.poll() is None:
            records = reader.read()
            show(ledger.trials(records), time.monotonic() - begin)
            if is_up(records, own) and not any(map(is_raylet, descendants(driver.pid))):
                break  # the driver would wait for it for ever
            time.sleep(LOOK_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            driver.kill()
        driver.wait()
        end_descendants()
    return driver.returncode


def await_the_last(run_dir: SearchDir) -> None:
    """Wait until the driver of a killed command is gone, whose Ray still has its files.

    Raises:
        RunDirError: it stays.
    """
    deadline = time.monotonic() + END_S
    while in_progress(run_dir, LOCK):
        if time.monotonic() > deadline:
            raise RunDirError(f"{run_dir.path}: in progress: another driver writes to it")
        time.sleep(LOOK_S)


def is_up(records: Sequence[ledger.Record], sitting: int) -> bool:
    """Whether the Ray of a sitting is to be there: it was up, and the sitting is not over."""
    told = [it["event"] for it in records if it["sitting"] == sitting]
    return ledger.READY in told and ledger.OVER not in told


def is_raylet(pid: int) -> bool:
    """Whether a process is a raylet that lives."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"/raylet")
    except OSError:
        return False


def end_descendants() -> None:
    """Kill what the driver has left, until there is nothing."""
    deadline = time.monotonic() + END_S
    while (pids := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def clear(run_dir: SearchDir) -> None:
    """Remove Ray's own files, those of a killed driver too, and half of what Tune keeps."""
    shutil.rmtree(run_dir.ray, ignore_errors=True)
    shutil.rmtree(run_dir.scratch / "tune", ignore_errors=True)


def take_down(run_dir: SearchDir) -> None:
    """Leave no process, and of the files only those of the search."""
    end_descendants()
    clear(run_dir)


def last_words(run_dir: SearchDir) -> str:
    """What the driver said last, in a line."""
    lines = (run_dir.logs / "driver.log").read_text(errors="replace").strip().splitlines()
    return one_line(f"the driver died: {lines[-1] if lines else 'it said nothing'}")
