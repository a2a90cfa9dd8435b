"""The README's two commands, each in a fresh clone: `python -m tests.validations clones --minutes 60`.

`pg bench run` and `pg chaos run` with all that they default to, on an idle machine and with one of its
cores taken by something else. A round is a clone of the commit, one command, and what a newcomer sees: its verdict, how
long it took, and when the first figure of scaling stood on the screen. How many rounds is decided before the first.
Packages are those of `.venv`: a clone of its own would install the same ones for some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.bench.child import ended_after
from proving_ground.bench.faithful import MOST_LONGER
from tests.validations.sitting import (
    MEASURED,
    ROOT,
    Document,
    KeptError,
    Sitting,
    begin,
    cut_off,
    decide,
    keep,
    load,
    origin,
    runs_of,
    turn,
)

FILE = MEASURED / "clones.json"
COMMAND = "nox -s validate -- clones"
ROUNDS = 10
IDLE, TAKEN = "idle", "one core taken"
MOST_S = {"bench": 360.0, "chaos": 600.0}  # asked of a command on an idle machine, seconds
ASKED = {IDLE: 10, TAKEN: 8}  # of ten rounds: those that end in pass or fail
FIRST_S = 90.0  # until the first figure of scaling
ESTIMATE = re.compile(r"\b(\d+)%  (?:(\d+) m )?(\d+) s (?:left|to a first look)\b")
PHASE = re.compile(r"^(\d+ of \d+ trials to do|verdict:)")  # an estimate is of the time until the next of these lines
SETTLED = 10  # percent done, from where on estimates count
FACTOR, CLOSE_S = 1.5, 5.0  # asked of an estimate: as near as that, or as that many seconds
WHY = 1000  # characters that are kept of the reasons
STOP_S = 30.0  # for a command to clean up after itself
CELLS = tuple(f"{name}, {load_}" for load_ in ASKED for name in MOST_S)
BUSY = "while True: pass"
VERDICT = re.compile(r"^verdict: (\w+)", re.MULTILINE)
FIGURE = re.compile(r"^so far: .*\(\d[\d.,]*–")  # with its interval


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 where fewer commands ended in an answer than asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations clones", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"of each cell, over all sittings (default {ROUNDS})"
    )
    options = parser.parse_args(argv)
    document, sitting = load(FILE, COMMAND), Sitting(options.minutes)
    decide(document, rounds=options.rounds)
    sit(document, sitting)
    print(table(document))
    return status(document)


def sit(document: Document, sitting: Sitting) -> None:
    """One command after the other, until the time is up or all are there."""
    while (cell := turn(document, CELLS, document["plan"]["rounds"])) and sitting.fits(most_s(cell)):
        sitting.say(f"{cell}: {1 + len(runs_of(document, cell))} of {document['plan']['rounds']}; {sitting.left()}")
        begin(document, cell)
        keep(FILE, document)
        found = measured(*cell.split(", "))
        document["cells"][cell]["runs"].append(found | origin())
        keep(FILE, document)
        sitting.say(f"  {found['verdict']} after {found['seconds']:.0f} s")


def most_s(cell: str) -> float:
    """Seconds that a round may take."""
    name, load_ = cell.split(", ")
    return MOST_S[name] * (MOST_LONGER if load_ == TAKEN else 1.0)


def measured(name: str, load_: str) -> dict[str, Any]:
    """What a newcomer sees of a command."""
    before = os.getloadavg()[0]
    with clone() as folder, busy(load_ == TAKEN):
        return seen(name, folder) | {"load": round(before, 2)}


@contextlib.contextmanager
def clone() -> Iterator[Path]:
    """The last commit as a stranger has it.

    Raises:
        KeptError: there are changes that a clone would lack.
    """
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if [it for it in changed.stdout.splitlines() if not it.endswith("reports/measured/clones.json")]:
        raise KeptError("there are changes that are not committed: a clone lacks them")
    with tempfile.TemporaryDirectory(prefix="pg-clone-") as made:
        folder = Path(made) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        yield folder


@contextlib.contextmanager
def busy(taken: bool) -> Iterator[None]:  # noqa: FBT001 - named where it is called
    """Something else that uses a core, where it is to."""
    if not taken:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", BUSY]) as other:
        try:
            yield
        finally:
            other.kill()


def seen(name: str, folder: Path) -> dict[str, Any]:
    """Run the command to its end: its verdict, seconds, and seconds to the first figure where one was shown."""
    begun, first, lines, at = time.monotonic(), None, list[str](), list[float]()
    words = [sys.executable, "-m", name, "run"]
    command = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with command, ended_after(command, STOP_S):
        assert command.stdout is not None
        for line in command.stdout:
            lines.append(line.decode(errors="replace"))
            at.append(time.monotonic())
            if first is None and FIGURE.search(lines[-1]):
                first = round(time.monotonic() - begun, 1)
        command.wait()
    verdict = VERDICT.search("".join(lines))
    why = {} if verdict and verdict[1] == "pass" else {"why": reasons(lines)[:WHY]}
    return {
        "verdict": verdict[1] if verdict else "none", "status": command.returncode,
        "seconds": round(time.monotonic() - begun, 1), "first_figure_s": first,
        "estimates": estimates(at, lines), **why,
    }  # fmt: skip


def estimates(at: Sequence[float], lines: Sequence[str]) -> list[tuple[float, float]]:
    """(seconds left as told, seconds left) of each line with an estimate, once a tenth of what it is of was done."""
    ends = [t for t, line in zip(at, lines, strict=True) if PHASE.match(line)]
    found = []
    for t, line in zip(at, lines, strict=True):
        if (told := ESTIMATE.search(line)) and int(told[1]) >= SETTLED and (end := [it for it in ends if it > t]):
            found.append((60.0 * int(told[2] or 0) + int(told[3]), round(end[0] - t, 1)))
    return found


def near(told_s: float, took_s: float) -> bool:
    """Whether an estimate was as good as is asked."""
    return abs(told_s - took_s) <= CLOSE_S or 1 / FACTOR <= told_s / max(took_s, 1e-9) <= FACTOR


def reasons(lines: Sequence[str]) -> str:
    """What stands below a verdict; without one, the last words."""
    at = next((number for number, line in enumerate(lines) if VERDICT.match(line)), None)
    if at is None:
        return "".join(lines[-3:])
    return "".join(takewhile(lambda line: line.startswith("  "), lines[at + 1 :]))


def answered(document: Mapping[str, Any], cell: str) -> int:
    """Rounds that ended in pass or fail."""
    return sum(it["verdict"] in ("pass", "fail") for it in runs_of(document, cell))


def enough(document: Mapping[str, Any], cell: str) -> bool | None:
    """Whether as many rounds ended in an answer, in time, as are asked; None: not all rounds are there."""
    rounds, name, load_ = document["plan"]["rounds"], *cell.split(", ")
    found = runs_of(document, cell)
    if len(found) < rounds:
        return None
    in_time = load_ != IDLE or all(it["seconds"] <= MOST_S[name] and shows_soon(name, it) for it in found)
    return in_time and answered(document, cell) * 10 >= ASKED[load_] * rounds


def shows_soon(name: str, round_: Mapping[str, Any]) -> bool:
    """Whether a benchmark's first figure was there in time."""
    return name != "bench" or (round_["first_figure_s"] is not None and round_["first_figure_s"] <= FIRST_S)


def status(document: Mapping[str, Any]) -> int:
    """1 when a cell is complete and not as asked."""
    return int(any(enough(document, cell) is False for cell in CELLS))


def table(document: Mapping[str, Any]) -> str:
    """A row a command and machine."""
    rows = [
        "| command | machine | n | pass | fail | unknown | target | median | longest | first figure, latest | |",
        "|---|---|--:|--:|--:|--:|---|--:|--:|--:|---|",
    ]
    for cell in CELLS:
        name, load_ = cell.split(", ")
        found = runs_of(document, cell)
        counts = [sum(it["verdict"] == word for it in found) for word in ("pass", "fail")]
        counts.append(len(found) - sum(counts))
        seconds, firsts = [it["seconds"] for it in found], [it["first_figure_s"] for it in found]
        times = f"{median(seconds):.0f} s | {max(seconds):.0f} s" if seconds else "– | –"
        shown = [it for it in firsts if it is not None]
        latest = f"{max(shown):.0f} s" if shown and len(shown) == len(firsts) else "–"
        asked = f"an answer in ≥{ASKED[load_]} of 10" + (f", ≤{MOST_S[name]:.0f} s" if load_ == IDLE else "")
        said = {True: "met", False: "missed", None: f"{len(found)} of {document['plan']['rounds']}"}
        rows.append(
            f"| `{name} run` | {load_} | {len(found)} | {' | '.join(map(str, counts))} | {asked} | {times} | {latest} "
            f"| {said[enough(document, cell)]} |"
        )
    told = f"Target of the first figure of scaling: {FIRST_S:.0f} s. Cut off and begun again: {cut_off(document)}."
    return "\n".join([*rows, "", told, *about_estimates(document)]) + "\n"


def about_estimates(document: Mapping[str, Any]) -> list[str]:
    """How good the times left were that the commands told; nothing where no round kept them."""
    told = [pair for cell in CELLS for it in runs_of(document, cell) for pair in it.get("estimates", ())]
    if not told:
        return []
    good, as_good = sum(near(*pair) for pair in told), f"within a factor of {FACTOR:g} or {CLOSE_S:.0f} s"
    return [f"Estimates of the time left, from {SETTLED} % of a run on: {good} of {len(told)} {as_good}."]
