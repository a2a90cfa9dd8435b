"""How long and how much memory a report takes: `python -m tests.benchmarks.report_events [EVENTS …]`.

Makes a scaling run and a chaos run of about so many events with the generators of the tests, reports each in a process
of its own and prints the seconds, those of CPU time (the machine may be busy), the peak memory (Linux) and the size of
the page. The target: 10^6 events in at most 10 s and 500 MB, linear in events.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from proving_ground.bench.rundir import RunDir
from tests.reports import synthetic as scaling
from tests.reports.recovery import synthetic as recovery

REPORT = """
import contextlib, pathlib, runpy, time
with contextlib.suppress(SystemExit):
    runpy.run_module("reports", run_name="__main__")
print(next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
print(time.process_time())
"""  # the peak of this process alone: the kernel counts it from the start of the program, in kB
PROCESSES = 45  # 3 repeats of 1 + 2 + 4 + 8 nodes
EVENTS_A_STEP = 11  # of three jobs with 3, 3 and 2 ranks, fingerprints included
FAULTY_STEPS = 100  # a fault in every hundredth step


def scaling_run(folder: Path, events: int) -> RunDir:
    """A benchmark's run."""
    return scaling.make(folder, scaling.Knobs(steps=events // PROCESSES, scalings=("weak",), compute_s=0.01))


def recovery_run(folder: Path, events: int) -> RunDir:
    """A chaos run: at 10^6 events it has about 900 faults."""
    steps = events // EVENTS_A_STEP
    faults = tuple(
        recovery.Fault(f"f{number:04}", "worker_kill", FAULTY_STEPS * number + 3, "n2")
        for number in range(1, steps // FAULTY_STEPS)
    )
    return recovery.make(folder, recovery.Knobs(steps=steps, faults=faults))


RUNS: dict[str, Callable[[Path, int], RunDir]] = {"scaling": scaling_run, "recovery": recovery_run}


def measure(kind: str, events: int) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        run = RUNS[kind](Path(folder), events)
        with run.history.open() as lines:
            found = sum(1 for _ in lines)
        before = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", REPORT, str(run.path)], check=True, capture_output=True, text=True)
        seconds, peak = time.perf_counter() - before, int(done.stdout.split()[-3]) / 1000
        cpu, page = float(done.stdout.split()[-1]), run.report.stat().st_size / 1000
        return f"{kind:<10} {found:>10,} {seconds:>8.1f} {cpu:>8.1f} {peak:>8.0f} {page:>8.0f}"


def main(sizes: list[int]) -> None:
    """One line for each kind and size."""
    print(f"{'report':<10} {'events':>10} {'seconds':>8} {'CPU s':>8} {'peak MB':>8} {'html kB':>8}")
    for kind in RUNS:
        for events in sizes:
            print(measure(kind, events), flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [10_000, 100_000, 1_000_000])
