"""Nothing breaks, and nothing may be said to: `python -m tests.validations healthy --minutes 60`.

Live training on four nodes without shares of the cores, beside the real Prometheus and Alertmanager; what they leave of
the cores is taken by others at the lowest priority. Each alert is a false alarm, each change of membership a false
eviction. Rounds accumulate over sittings.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.child import ended_after
from proving_ground.bench.rundir import RunDir
from tests.validations.sitting import MEASURED, ROOT, Document, Sitting, keep, load, origin

FILE = MEASURED / "healthy.json"
COMMAND = "nox -s validate -- healthy"
ROUND_S, FIRST_S, REST_S = 1800.0, 60.0, 30.0  # of training; the first, from which its speed is known; around each
NODES = 4
GUESS_S = 0.3  # a step, before one was measured
BUSY = "import os; os.nice(19)\nwhile True: pass"

SUITE = """title = "Healthy, under full load"
nodes = [{nodes}]
repeats = 1
disk_mb = 64
volume_mb = 256
monitor = true
monitor_factor = {factor:g}

[[case]]
name = "healthy"
workload = "digits"
mechanism = "live"
cpus_per_node = {cores}
min_nodes = 1
global_batch = 360
steps = {steps}
warmup_steps = 5
estimated_step_s = {step_s}
training = {{ reduction = "exact", shards = 6, optimizer = "adamw", lr = 0.002, clip_norm = 1.0, dropout = 0.1, \
checkpoint_every = 30, timeout_s = 0.0 }}
"""


def main(argv: list[str]) -> int:
    """One sitting; exit status 1 when there was an alarm or an eviction, or no evidence that there was none."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations healthy", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument("--factor", type=float, default=1.0, help="divide the rules' durations (default 1: as shipped)")
    options = parser.parse_args(argv)
    sitting, document = Sitting(options.minutes), load(FILE, COMMAND)
    rounds = document["cells"].setdefault("live", [])
    while sitting.fits(FIRST_S + REST_S):
        step_s = rounds[-1]["train_s"] / rounds[-1]["steps"] if rounds else 0.0
        wanted_s = min(ROUND_S if rounds else FIRST_S, sitting.seconds_left() - REST_S)
        print(f"round {len(rounds) + 1}, {wanted_s:.0f} s · {sitting.left()}", flush=True)
        rounds.append(one_round(step_s or GUESS_S, wanted_s, options.factor))
        keep(FILE, document)
        if not rounds[-1]["watched_s"]:
            print("nothing was trained, or nothing watched it: that is no quiet round; see above")
            return 1
    print(told(document))
    return int(any(it["alarms"] or it["evictions"] for it in rounds))


def one_round(step_s: float, wanted_s: float, factor: float) -> Document:
    """Train for about so long, with all cores busy; what was said meanwhile."""
    with tempfile.TemporaryDirectory() as folder, busy():
        file = Path(folder) / "healthy.toml"
        known = {"nodes": NODES, "step_s": NODES * step_s, "cores": os.cpu_count(), "factor": factor}
        file.write_text(SUITE.format(steps=max(10, round(wanted_s / step_s)), **known))
        before = cpu_ticks()
        words = ["--runs", folder, "run", "--suite", str(file)]
        subprocess.run([sys.executable, "-m", "proving_ground.bench", *words], cwd=ROOT, check=False)
        busy_ticks, ticks = (after - then for after, then in zip(cpu_ticks(), before, strict=True))
        return {
            "factor": factor,
            "load_percent": round(100 * busy_ticks / ticks, 1),
            **seen(rundir.find(Path(folder), "healthy")),
            **origin(),
        }


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """A process for every core that computes whenever nobody else does."""
    with contextlib.ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            stack.enter_context(ended_after(subprocess.Popen([sys.executable, "-c", BUSY]), 1.0))
        yield


def cpu_ticks() -> tuple[int, int]:
    """(busy, all) ticks of all cores since the machine started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, and waiting for a disk


def seen(store: RunDir) -> Document:
    """What a run recorded: seconds trained and watched, steps, alarms, memberships after the first."""
    records = list(rundir.recorded(store))
    steps = [float(it["t"]) for it in records if it["event"] == "step"]
    up = [float(it["t"]) for it in records if it["event"] == "monitoring_up"]
    members = [it for it in records if it["event"] == "membership" and int(it["round"]) > 1]
    alarms = [it for it in records if it["event"] == "alert" and it["state"] == "firing"]
    train_s = max(steps) - min(steps) if len(steps) > 1 else 0.0
    return {
        "train_s": round(train_s, 1),
        "watched_s": round(max(0.0, max(steps) - max(min(steps), up[0])), 1) if up and steps else 0.0,
        "steps": max((int(it["step"]) for it in records if it["event"] == "step"), default=1),
        "alarms": [alarm(it, min(steps, default=0.0)) for it in alarms],
        "evictions": len({int(it["round"]) for it in members}),
        "detected": sorted({f"{it['why']}: {it['detail']}" for it in records if it["event"] == "detected"}),
    }


def alarm(record: Mapping[str, Any], begin_t: float) -> Document:
    """What came, and how long after the first step."""
    return {"alert": record["alert"], "after_s": round(float(record["t"]) - begin_t, 1), "labels": record["labels"]}


def told(document: Mapping[str, Any]) -> str:
    """All rounds in a line."""
    rounds = document["cells"]["live"]
    alarms = [alarm["alert"] for it in rounds for alarm in it["alarms"]]
    train_min, watched_min = (sum(it[key] for it in rounds) / 60 for key in ("train_s", "watched_s"))
    factors = ", ".join(sorted({f"{it['factor']:g}" for it in rounds}))
    load_percent = min((it["load_percent"] for it in rounds), default=0.0)
    return (
        f"{train_min:.1f} min of training, {load_percent:.0f} % of the CPU busy at least: "
        f"false evictions: {sum(it['evictions'] for it in rounds)}; "
        f"false alarms: {len(alarms)} in {watched_min:.1f} min watched"
        + (f" ({', '.join(sorted(set(alarms)))})" if alarms else "")
        + f", durations of the rules divided by {factors}"
    )
