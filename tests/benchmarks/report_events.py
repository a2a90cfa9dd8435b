"""How long and how much memory a report takes: `python -m tests.benchmarks.report_events [EVENTS …]`.

Makes a run of about so many events with the generator of the tests, reports it in a process of its own and prints the
seconds, those of CPU time (the machine may be busy), the peak memory (Linux) and the size of the page. The target: 10^6
events in at most 10 s and 500 MB, linear in events.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.reports.synthetic import Knobs, make

REPORT = """
import pathlib, sys, time
from reports.__main__ import main
main(sys.argv[1:])
print(next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
print(time.process_time())
"""  # the peak of this process alone: the kernel counts it from the start of the program, in kB
PROCESSES = 45  # 3 repeats of 1 + 2 + 4 + 8 nodes


def main(sizes: list[int]) -> None:
    """One line for each size."""
    print(f"{'events':>10} {'seconds':>8} {'CPU s':>8} {'peak MB':>8} {'html kB':>8}")
    for events in sizes:
        with tempfile.TemporaryDirectory() as folder:
            knobs = Knobs(steps=events // PROCESSES, scalings=("weak",), compute_s=0.01)
            run = make(Path(folder), knobs)
            with run.history.open() as lines:
                found = sum(1 for _ in lines)
            before = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", REPORT, str(run.path)], check=True, capture_output=True, text=True
            )
            seconds, peak = time.perf_counter() - before, int(done.stdout.split()[-3]) / 1000
            cpu, page = float(done.stdout.split()[-1]), run.report.stat().st_size / 1000
            print(f"{found:>10,} {seconds:>8.1f} {cpu:>8.1f} {peak:>8.0f} {page:>8.0f}")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [10_000, 100_000, 1_000_000])
