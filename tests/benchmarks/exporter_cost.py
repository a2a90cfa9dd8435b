"""What the exporter costs: `python -m tests.benchmarks.exporter_cost [SECONDS]` (default 60).

Eight nodes write 50 steps a second each, with ledgers as a chaos run has them, into event files; an exporter in a
process of its own follows them and is scraped every 5 s. Prints its share of a core and its memory from /proc, how long
scrapes took, how many series they had, and whether it saw every event. The bars: 2 % of a core, 100 MB, 50 ms.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from proving_ground.bench.rundir import RunDir

NODES, STEPS_PER_S, TICK_S, SCRAPE_S = 8, 50, 0.1, 5.0
PARTS = {"data_s": 0.001, "forward_s": 0.006, "backward_s": 0.008, "comm_s": 0.003, "optimizer_s": 0.001}


def made(folder: Path) -> RunDir:
    """A run that has just begun."""
    run = RunDir(folder / "cost" / "run")
    run.events.mkdir(parents=True)
    plan = {"id": "t001", "case": "cost", "workload": "digits", "nodes": NODES, "estimate_s": 3600.0}
    run.write("plan", {"trials": [plan]})
    run.write("provenance", {"wall_s": time.time(), "t": time.monotonic()})
    run.write("spec", {"name": "cost"})
    (run.events / "harness.jsonl").write_text(line("trial_start", trial="t001"))
    return run


def line(event: str, **fields: object) -> str:
    """One event as it is written."""
    return json.dumps({"t": time.monotonic(), "event": event, **fields}, separators=(",", ":")) + "\n"


def steps(files: Sequence[IO[str]], seconds: float) -> Iterator[int]:
    """Write steps at their rate; the number of events after each tick."""
    begin, number = time.monotonic(), 0
    rows = list(range(1000, 1032))
    while (elapsed := time.monotonic() - begin) < seconds:
        due = int(elapsed * STEPS_PER_S)
        for step in range(number + 1, due + 1):
            for file in files:
                t = time.monotonic()
                about = {"step": step, "samples": 32, "world_size": NODES, "generation": 1, "rows": rows, "loss": 1.5}
                file.write(line("step", begin_t=t - 0.02, step_s=0.02, lr=0.002, wall_s=time.time(), **about, **PARTS))
        for file in files:
            file.flush()
        number = due
        yield number * NODES
        time.sleep(TICK_S)


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


def scrape(port: int) -> tuple[float, str]:
    """Seconds that a scrape took, and what it brought."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    begin = time.monotonic()
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return time.monotonic() - begin, text


def main(seconds: float) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run = made(Path(folder))
        files = [stack.enter_context((run.events / f"t001.n{node}.0.jsonl").open("a")) for node in range(1, NODES + 1)]
        command = [sys.executable, "-m", "proving_ground.monitoring", "export", str(run.path), "--port", "0"]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.terminate)
        assert process.stdout is not None
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        began, cpu, events = time.monotonic(), cpu_s(process.pid), 0
        took: list[float] = []
        for written in steps(files, seconds):
            events = written
            if time.monotonic() - began > SCRAPE_S * (len(took) + 1):
                took.append(scrape(port)[0])
        share = (cpu_s(process.pid) - cpu) / (time.monotonic() - began)
        time.sleep(1)
        _, text = scrape(port)
        seen = float(text.partition("exporter_events_total{")[2].partition("} ")[2].split()[0])
        series = sum(not row.startswith("#") for row in text.splitlines())
        print(f"{NODES} nodes at {STEPS_PER_S} steps/s for {seconds:.0f} s: {events} steps, {seen - 1:.0f} seen")
        print(f"{100 * share:.2f} % of a core, {memory_mb(process.pid):.0f} MB")
        print(
            f"scrapes of {series} series: median {1e3 * statistics.median(took):.1f} ms, max {1e3 * max(took):.1f} ms"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
