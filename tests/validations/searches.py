"""What early stopping saves, and what a kill costs a search: `python -m tests.validations searches`.

`early`: for each seed the suite `digits` is searched twice over the same points, by ASHA and in full. A trial's
values are the same in both, which is checked, so what ASHA did not find it has stopped too early. `killed`: the suite
`smoke` with a `kill -9` after as many trials as the seed says, of the command (then `resume`) and of the driver alone,
in turn. `overhead`: trials of two lengths one after the other in a search, and the same trainings by themselves, in
turn. Steps and trials count in the first two, times in the third. Kept in `reports/measured/searches.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from proving_ground.bench.rundir import RunDirError
from proving_ground.reports import intervals
from proving_ground.reports.scaling.checks import against
from proving_ground.reports.verdicts import FAIL, UNKNOWN
from proving_ground.search import ledger, results, store
from proving_ground.search.store import SearchDir
from proving_ground.training.typed import one_line
from tests.search.running import PLANTED, command, ended
from tests.validations.sitting import (
    MEASURED,
    ROOT,
    Document,
    Sitting,
    State,
    begin,
    cut_off,
    decide,
    keep,
    load,
    origin,
    runs_of,
    turn,
)

FILE = MEASURED / "searches.json"
COMMAND = "nox -s validate -- searches"
SEEDS, KILLS, TURNS = 10, 20, 5
ROUNDS = {"early": SEEDS, "killed": KILLS, "overhead": TURNS}
SECONDS = {"early": 240.0, "killed": 120.0, "overhead": 420.0}
"""How long one takes at most, more or less."""
SAVED_PERCENT, WORSE_POINTS = 50.0, 1.0
"""What ASHA has to save, with its interval; and by how much its best accuracy may be worse, of any seed."""
LENGTHS = {"short": 500, "long": 3000}  # steps: about ten seconds, and a minute
OVERHEAD_PERCENT = 5.0
"""What a long trial in a search may take more than by itself."""
VICTIMS = ("command", "driver")
TRIALS, LATER_S = 10, 2.0
"""A kill comes so many seconds at most after some of the ten trials have ended, from none to nine."""
PATIENCE_S = 600.0
"""For anything: a search that takes longer hangs."""
BROKEN = "t010"
"""The trial of the suite `smoke` that fails, whose rate is far too large."""


def search(runs: Path, *words: str) -> int:
    """The exit status of one command of the search."""
    argv = command(runs, *words, "--quiet")
    return subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL, check=False, timeout=PATIENCE_S).returncode


def early(seed: int) -> dict[str, Any]:
    """One search by ASHA and one in full, over the same points."""
    found: dict[str, Any] = {"seed": seed}
    curves: list[dict[str, dict[int, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for algorithm in BOTH:
            runs = Path(folder) / algorithm
            status = search(runs, "run", "--suite", "digits", "--algorithm", algorithm, "--seed", str(seed))
            run_dir = store.find(runs, "latest")
            found[algorithm] = {"status": status, **told(run_dir)}
            curves.append({it.id: dict(it.curve) for it in ledger.trials(ledger.read(run_dir.ledger)).values()})
    asha, full = curves
    found["unlike"] = sorted(it for it, curve in asha.items() if curve.items() - full.get(it, {}).items())
    return found


def told(run_dir: SearchDir) -> dict[str, Any]:
    """What a search came to."""
    analysis = results.analyse(run_dir)
    figures = {str(it["name"]): it for it in analysis.figures}
    best = figures.get("best")
    saved = figures.get("steps_saved_share")
    return {
        "verdict": analysis.overall,
        "trials": len(analysis.trials),
        "best": best and best["median"],
        "trial": best and best["where"]["trial"],
        "saved_percent": saved["median"] if saved else 0.0,
        "steps": sum(it.steps for it in analysis.trials.values()),
        "failed": sorted(it.id for it in analysis.trials.values() if it.state == ledger.FAILED),
    }


def killed(seed: int) -> dict[str, Any]:
    """One search in which something dies, and that comes to its end all the same."""
    chance = random.Random(f"searches {seed}")  # noqa: S311 - to be repeated, not secret
    victim, trials, later_s = VICTIMS[seed % len(VICTIMS)], chance.randrange(TRIALS), chance.uniform(0.0, LATER_S)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder).resolve()
        with started(command(runs, "run", "--suite", "smoke", "--quiet")) as running:
            run_dir = begun(runs, running)
            deadline = time.monotonic() + PATIENCE_S
            while len(ended(run_dir)) < trials and running.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(later_s)
            before = ended(run_dir)
            hit = kill(victim, running, run_dir)
            status = running.wait(PATIENCE_S)
        if victim == "command":
            status = search(runs, "resume", "latest")
        records = ledger.read(run_dir.ledger)
        return {
            "seed": seed, "victim": victim, "after_trials": trials, "later_s": round(later_s, 3), "hit": hit,
            "ended_before": len(before),
            "sittings": ledger.sittings(records), "status": status, "again": sorted(begun_again(records, before)),
            **told(run_dir),
        }  # fmt: skip


@contextlib.contextmanager
def started(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that says nothing, and that is no more afterwards, whatever happens here."""
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.kill()


def begun(runs: Path, running: subprocess.Popen[bytes]) -> SearchDir:
    """The search's directory, once its first driver has said that it begins."""
    deadline = time.monotonic() + PATIENCE_S
    while running.poll() is None and time.monotonic() < deadline:
        for run_dir in store.every(runs):
            if ledger.sittings(ledger.read(run_dir.ledger)):
                return run_dir
        time.sleep(0.1)
    raise RuntimeError(f"no search was begun within {PATIENCE_S:g} s: status {running.poll()}")


def kill(victim: str, running: subprocess.Popen[bytes], run_dir: SearchDir) -> bool:
    """Kill one; whether it was there, and the search not over."""
    pid = running.pid if victim == "command" else driver_of(run_dir)
    if pid is None or running.poll() is not None or ledger.over(ledger.read(run_dir.ledger)):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def driver_of(run_dir: SearchDir) -> int | None:
    """The process that writes the ledger."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if b"proving_ground.search.driver" in words and str(run_dir.path).encode() in words:
                return int(file.parent.name)
    return None


def begun_again(records: Sequence[ledger.Record], before: set[str]) -> set[str]:
    """Trials that had ended before the kill, or at any time, and were begun after that."""
    later = {it["trial"] for it in records if it["event"] == ledger.STARTED and it["sitting"] > 1}
    return (later & before) | set(ledger.repeated(records))


LENGTH = """
title = "Two trials of a length"
algorithm = "grid"
concurrent = 1
steps = {steps}
metric = "accuracy"
[training]
model = "digits"
[space]
lr = {{ choice = [0.05, 0.051] }}
"""
ALONE = """
import sys, time
from pathlib import Path
from proving_ground.search.points import points
from proving_ground.search.spec import load
from proving_ground.training import train
from proving_ground.training.events import EventWriter
search = load(sys.argv[1])
begin = time.monotonic()
for number, point in enumerate(points(search)):
    train(search.config(point), EventWriter(Path(sys.argv[2]) / f"{number}.jsonl"), lambda _: None)
print(time.monotonic() - begin)
"""
"""The same trainings in one process, without Ray; its own start is not counted."""


def overhead(number: int) -> dict[str, Any]:
    """Seconds that two trials of each length took, by themselves and in their slot; which comes first alternates."""
    found: dict[str, Any] = {"seed": number}
    for length, steps in LENGTHS.items():
        with tempfile.TemporaryDirectory() as folder:
            suite = Path(folder) / f"{length}.toml"
            suite.write_text(LENGTH.format(steps=steps))
            ways = {"alone_s": alone_s, "searched_s": searched_s}
            order = sorted(ways, reverse=bool(number % 2))
            found[length] = {way: ways[way](suite) for way in order}
    return found


def alone_s(suite: Path) -> float:
    """Of the trainings by themselves."""
    words = [sys.executable, "-c", ALONE, str(suite), str(suite.parent)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
    return float(done.stdout)


def searched_s(suite: Path) -> float | None:
    """For which the trials had the search's one slot: imports and hand-over included, Ray's own start not."""
    runs = suite.parent / "runs"
    search(runs, "run", "--suite", str(suite))
    analysis = results.analyse(store.find(runs, "latest"))
    return sum(analysis.times.held_s.values()) if analysis.overall == "pass" else None


BOTH = ("asha", "random")
KINDS = {"early": early, "killed": killed, "overhead": overhead}


def more(document: Mapping[str, Any], length: str) -> list[float]:
    """Of each turn, by how many per cent trials of a length took longer in a search."""
    runs = [it[length] for it in runs_of(document, "overhead") if length in it]
    return [100 * (it["searched_s"] / it["alone_s"] - 1) for it in runs if it["searched_s"]]


def saved(document: Mapping[str, Any]) -> list[float]:
    """Of each seed, the share of the steps that ASHA did not make, in %."""
    return [float(it["asha"]["saved_percent"]) for it in runs_of(document, "early") if both(it)]


def worse(document: Mapping[str, Any]) -> list[float]:
    """Of each seed, by how many points of accuracy ASHA's best is below the best of all points in full."""
    return [100 * (it["random"]["best"] - it["asha"]["best"]) for it in runs_of(document, "early") if both(it)]


def both(run: Mapping[str, Any]) -> bool:
    """Whether both searches came to their end with a best, and each trial was the same training in both."""
    good = [name in run and run[name]["verdict"] == "pass" and run[name]["best"] is not None for name in BOTH]
    return all(good) and not run["unlike"]


def ends(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean by Student's t; without end where one value says nothing of the noise."""
    if len(values) < 2:
        return -float("inf"), float("inf")
    half = intervals.student(len(values)) * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def survived(run: Mapping[str, Any]) -> bool:
    """Whether a search came to its end with the planted best, nothing else failed, and no trial twice."""
    if "error" in run or run["verdict"] != "pass" or run["status"] or run["again"] or run["trials"] != TRIALS:
        return False
    return bool(run["trial"] == PLANTED and run["failed"] == [BROKEN])


def judged(document: Mapping[str, Any]) -> tuple[int, int]:
    """(what is not as it must be, what cannot be told)."""
    bad = sum(not survived(it) for it in runs_of(document, "killed"))
    bad += sum(not both(it) for it in runs_of(document, "early"))
    bad += sum(it > WORSE_POINTS for it in worse(document))
    turns = runs_of(document, "overhead")
    bad += sum("error" in it or any(it[length]["searched_s"] is None for length in LENGTHS) for it in turns)
    asked = [
        (saved(document), SEEDS, SAVED_PERCENT, float("inf")),
        (more(document, "long"), TURNS, -float("inf"), OVERHEAD_PERCENT),
    ]
    answers = [against(ends(values), low, high) for values, whole, low, high in asked if len(values) >= whole]
    late = sum(survived(it) and not it["hit"] for it in runs_of(document, "killed"))
    return bad + answers.count(FAIL), late + answers.count(UNKNOWN)


def state(document: Mapping[str, Any]) -> State:
    """How far it is."""
    done = sum(min(len(runs_of(document, it)), most) for it, most in ROUNDS.items())
    return State(done, sum(ROUNDS.values()), "searches", *judged(document))


def table(document: Mapping[str, Any]) -> str:
    """What was saved at what price, and what a kill cost."""
    pairs, hits = [it for it in runs_of(document, "early") if both(it)], runs_of(document, "killed")
    same = sum(it["asha"]["trial"] == it["random"]["trial"] for it in pairs)
    heads = ["| what | n | measured | target |", "|---|--:|---|---|"]
    price = f"{told_of(worse(document), ' points')}; the same best trial in {same} of {len(pairs)}"
    rows = [
        row_of("steps that ASHA saves of 27 trials", saved(document), told_of(saved(document), " %"), "≥50 %"),
        row_of("its best accuracy, below that of all trials in full", worse(document), price, "each ≤1 point"),
    ]
    for length, asked in (("short", "told"), ("long", f"≤{OVERHEAD_PERCENT:g} %")):
        alone = [it[length]["alone_s"] / 2 for it in runs_of(document, "overhead") if length in it]
        what = f"a trial of {median(alone):.0f} s" if alone else f"a trial of {LENGTHS[length]:,} steps"
        values = more(document, length)
        rows.append(f"| {what} takes longer in a search by | {len(values)} turns | {told_of(values, ' %')} | {asked} |")
    rows += [row(victim, [it for it in hits if it["victim"] == victim]) for victim in VICTIMS]
    errors = sum("error" in it for cell in ROUNDS for it in runs_of(document, cell))
    told = f"Ended in an error: {errors}. Begun again since they were cut off: {cut_off(document)}."
    return "\n".join([*heads, *rows, "", told]) + "\n"


def row_of(what: str, values: Sequence[float], measured: str, asked: str) -> str:
    """One of early stopping's."""
    return f"| {what} | {len(values)} seeds | {measured} | {asked} |"


def row(victim: str, hit: Sequence[Document]) -> str:
    """How many searches in which one of the two was killed came to their end."""
    good, whole = sum(map(survived, hit)), [it for it in hit if "error" not in it]
    before, again = sum(it["ended_before"] for it in whole), sum(len(it["again"]) for it in whole)
    late = sum(not it["hit"] for it in whole)
    told = f"{good} of {len(hit)}; {before} trials had ended before, {again} were run again"
    return f"| {victim} killed by SIGKILL | {len(hit)} | {told}{f'; {late} came too late' if late else ''} | all, 0 |"


def told_of(values: Sequence[float], unit: str) -> str:
    """`61.2 % (58.0 to 64.4), 55.1 to 70.3 in all`."""
    if not values:
        return "not measured"
    low, high = ends(values)
    around = f" ({low:.1f} to {high:.1f})" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{unit}{around}, median {median(values):.1f}, {min(values):.2f} to {max(values):.2f}"


def tried(name: str, number: int) -> dict[str, Any]:
    """One of a kind; an error counts, and is not tried again."""
    try:
        return KINDS[name](number)
    except (RunDirError, subprocess.SubprocessError, RuntimeError) as error:
        return {"seed": number, "victim": VICTIMS[number % len(VICTIMS)], "error": one_line(str(error))}


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 where something is not as it must be."""
    options = argparse.ArgumentParser(prog="python -m tests.validations searches", description=__doc__)
    options.add_argument("--minutes", type=float, default=60.0, help="how long this sitting may take (default: 60)")
    sitting = Sitting(options.parse_args(argv).minutes)
    document = load(FILE, COMMAND, state)
    decide(document, **ROUNDS)
    while name := next((it for it in ROUNDS if turn(document, [it], ROUNDS[it])), ""):
        if not sitting.fits(SECONDS[name]):
            break
        number = len(runs_of(document, name)) + 1
        sitting.say(f"{name}: {number} of {ROUNDS[name]} · {sitting.left()}")
        begin(document, name)
        keep(FILE, document)
        found = tried(name, number)
        document["cells"][name]["runs"].append({**found, **origin()})
        keep(FILE, document)
        sitting.say(f"  {found}")
    sitting.say(table(document))
    sitting.say(str(state(document)))
    return int(state(document).bad > 0)
