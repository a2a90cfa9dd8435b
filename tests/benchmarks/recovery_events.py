"""How long and how much memory a recovery report takes: `python -m tests.benchmarks.recovery_events [EVENTS …]`.

Makes a chaos run of about so many events with the generator of the tests, a fault in every hundredth step, and measures
it like `report_events` does. The target is the same: 10^6 events in at most 10 s and 500 MB, linear in events.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.report_events import REPORT
from tests.reports.recovery.synthetic import Fault, Knobs, make

EVENTS_A_STEP = 11  # of three jobs with 3, 3 and 2 ranks, fingerprints included
FAULTY_STEPS = 100


def main(sizes: list[int]) -> None:
    """One line for each size."""
    print(f"{'events':>10} {'faults':>7} {'seconds':>8} {'CPU s':>8} {'peak MB':>8} {'html kB':>8}")
    for events in sizes:
        steps = events // EVENTS_A_STEP
        faults = tuple(
            Fault(f"f{number:04}", "worker_kill", FAULTY_STEPS * number + 3, "n2")
            for number in range(1, steps // FAULTY_STEPS)
        )
        with tempfile.TemporaryDirectory() as folder:
            run = make(Path(folder), Knobs(steps=steps, faults=faults))
            with run.history.open() as lines:
                found = sum(1 for _ in lines)
            before = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", REPORT, str(run.path)], check=True, capture_output=True, text=True
            )
            seconds, peak = time.perf_counter() - before, int(done.stdout.split()[-3]) / 1000
            cpu, page = float(done.stdout.split()[-1]), run.report.stat().st_size / 1000
            print(f"{found:>10,} {len(faults):>7} {seconds:>8.1f} {cpu:>8.1f} {peak:>8.0f} {page:>8.0f}")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [10_000, 100_000, 1_000_000])
