"""Stack `local` by the real Pulumi CLI on a real node: `python -m tests.validations pulumi`.

Rounds of up, a second up, and down, each waiting until every pod passes its probes, or all is gone; and interruptions
of up and down, by Ctrl-C and by `kill -9`, at moments drawn from a seed, each mended by what the README says. How many
is decided before the first. `up` is timed with the images present; `tests/infra/testbed` says which are stand-ins.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.infra.cluster.labels import NAMESPACES
from tests.infra.apiserver.server import kubeconfig
from tests.infra.gotools import KUBERNETES, UnavailableError
from tests.infra.testbed.cluster import cluster
from tests.infra.testbed.project import WAYS, Project, copied
from tests.validations.sitting import (
    MEASURED,
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

FILE = MEASURED / "pulumi.json"
COMMAND = "nox -s validate -- pulumi"
ROUNDS, EACH = 10, 5  # of up, up, down; interruptions of each kind
TARGET_S = 60.0  # `up`, the largest
WHOLE = "whole"
KINDS = tuple(f"{word} {way}" for way, word in product(WAYS, ("up", "down")))
GUESS_S = 180.0  # a round or an interruption

Check = Callable[[Mapping[str, Any]], bool]

STEPS: tuple[tuple[str, str, str, Check], ...] = (
    (
        "`up`, from nothing", "up_s", f"every pod ready, ≤{TARGET_S:g} s",
        lambda it: it["pods_ready"] == it["pods"] and it["up_s"] <= TARGET_S,
    ),
    ("a second `up`", "second_up_s", "no changes", lambda it: not it["second_changed"]),
    ("`down`", "down_s", "nothing left", lambda it: not it["left"]),
)  # fmt: skip
"""Step of a round: in words, its seconds, its target, and whether a round met it."""


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations pulumi", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"over all sittings (default {ROUNDS})")
    parser.add_argument(
        "--each", type=int, default=EACH, help=f"interruptions of each of {len(KINDS)} kinds (default {EACH})"
    )
    options = parser.parse_args(argv)
    document, sitting = load(FILE, COMMAND), Sitting(options.minutes)
    decide(document, rounds=options.rounds, each=options.each)
    if not next_of(document):
        print(table(document))
        return status(document)
    try:
        with project() as made:
            document["versions"] = versions(made)
            sit(document, made, sitting)
    except UnavailableError as reason:
        raise KeptError(f"cannot be measured on this machine: {reason}") from None
    print(table(document))
    return status(document)


@contextlib.contextmanager
def project() -> Iterator[Project]:
    """The project, on a cluster with nothing of ours on it."""
    if shutil.which("pulumi") is None:
        raise UnavailableError("no Pulumi CLI on PATH")
    with tempfile.TemporaryDirectory() as folder:
        home, place = Path(folder) / "home", Path(folder) / "cluster"
        for it in (home, place):
            it.mkdir()
        with cluster(place) as bed:
            (home / "kubeconfig").write_text(json.dumps(kubeconfig(bed.server)))
            yield copied(home, bed.server, home / "kubeconfig")


def versions(made: Project) -> dict[str, str]:
    """Of the CLI and of the cluster."""
    cli = subprocess.run(["pulumi", "version"], check=True, capture_output=True, text=True, env=made.environ)
    nodes = made.server.request("GET", "/api/v1/nodes").body["items"]
    known = nodes[0]["status"]["nodeInfo"]
    runtime, kernel = known["containerRuntimeVersion"], known["kernelVersion"]
    return {"pulumi": cli.stdout.strip(), "kubernetes": KUBERNETES, "containerd": runtime, "kernel": kernel}


def sit(document: Document, made: Project, sitting: Sitting) -> None:
    """One after the other, until the time is up or all are there."""
    while (cell := next_of(document)) and sitting.fits(GUESS_S):
        number = 1 + len(runs_of(document, cell))
        sitting.say(f"{cell}: {number} of {wanted(document, cell)}; {sitting.left()}")
        begin(document, cell)
        keep(FILE, document)
        word, _, way = cell.partition(" ")
        found = whole(made) if cell == WHOLE else interruption(made, word, way, number)
        document["cells"][cell]["runs"].append(found | origin())
        keep(FILE, document)
        if not found["fine"]:
            sitting.say(f"  not as it should be: {found}")


def wanted(document: Mapping[str, Any], cell: str) -> int:
    """How many of a cell were decided."""
    return int(document["plan"]["rounds" if cell == WHOLE else "each"])


def next_of(document: Mapping[str, Any]) -> str:
    """The cell whose turn it is: a round for every interruption of each kind, as long as both last."""
    open_cells = [cell for cell in (WHOLE, *KINDS) if len(runs_of(document, cell)) < wanted(document, cell)]
    return turn(document, open_cells, max((wanted(document, cell) for cell in open_cells), default=0))


def whole(made: Project) -> dict[str, Any]:
    """Up, up, down: seconds, changes, and what was left."""
    made.bring("down")
    first = made.timed("up")
    pods = made.pods()
    second = made.infra("up").fine()
    gone = made.timed("down")
    left = made.left()
    counts = {
        "created": first.changes.get("created", 0), "deleted": gone.changes.get("deleted", 0),
        "second_changed": sum(count for what, count in second.changes.items() if what != "unchanged"),
        "pods": len(pods), "pods_ready": sum(pods.values()), "left": len(left) + made.resources(),
    }  # fmt: skip
    seconds = {"up_s": first.seconds, "second_up_s": second.seconds, "down_s": gone.seconds}
    fine = not (counts["second_changed"] or counts["left"]) and counts["pods"] == counts["pods_ready"] > 0
    return {**counts, **{name: round(it, 1) for name, it in seconds.items()}, "fine": fine}


def interruption(made: Project, word: str, way: str, number: int) -> dict[str, Any]:
    """Stop a command at some moment, mend it; whether the cluster and the state are as the command leaves them."""
    before = {"up": "down", "down": "up"}[word]
    if word not in made.seconds:
        made.bring(before)
        made.timed(word)
    made.bring(before)
    after_s = random.Random(f"{number}-{way}-{word}").uniform(0, made.seconds[word])  # noqa: S311 - moments
    stopped = made.interrupt(word, way, after_s)
    mended, why = None, ""
    try:
        mended = made.mend(word).seconds
    except AssertionError as error:
        why = str(error)[-500:]
    fine = mended is not None and "Traceback" not in stopped.err and as_it_should_be(made, word)
    return {
        "after_s": round(after_s, 2), "of_s": round(made.seconds[word], 1), "status": stopped.status,
        "mended_s": mended and round(mended, 1), "fine": fine, **({"why": why} if why else {}),
    }  # fmt: skip


def as_it_should_be(made: Project, word: str) -> bool:
    """After `up` another one changes nothing and every pod is ready; after `down` nothing is left."""
    if word == "down":
        return not made.left() and not made.resources()
    again = made.infra("up")
    return not again.status and set(again.changes) == {"unchanged"} and made.spaces() == set(NAMESPACES) and all(
        made.pods().values()
    )  # fmt: skip


def status(document: Mapping[str, Any]) -> int:
    """1 when anything was not as it should be, or an `up` took too long."""
    runs = [run for cell in (WHOLE, *KINDS) for run in runs_of(document, cell)]
    slow = any(run["up_s"] > TARGET_S for run in runs_of(document, WHOLE))
    return int(slow or not all(run["fine"] for run in runs))


def table(document: Mapping[str, Any]) -> str:
    """Rounds with their seconds and counts, and the interruptions by kind."""
    rounds = runs_of(document, WHOLE)
    rows = ["| | n | as it should be | median | largest | target |", "|---|--:|--:|--:|--:|---|"]
    for words, name, target, right in STEPS:
        rows.append(row(words, sum(map(right, rounds)), [it[name] for it in rounds], target))
    for kind in KINDS:
        word, way = kind.split()
        found = runs_of(document, kind)
        seconds = [it["mended_s"] or 0.0 for it in found]
        rows.append(row(f"`{word}` stopped by {way}: mending", sum(it["fine"] for it in found), seconds, "one command"))
    objects, pods = (sorted({it[name] for it in rounds}) for name in ("created", "pods"))
    about = f"Resources made: {listed(objects)}; pods: {listed(pods)}."
    return "\n".join([*rows, "", f"{about} Begun again since they were cut off: {cut_off(document)}."]) + "\n"


def row(words: str, right: int, seconds: Sequence[float], target: str) -> str:
    """One of the table."""
    return f"| {words} | {len(seconds)} | {right} | {spread(seconds)} | {target} |"


def spread(values: Sequence[float]) -> str:
    """Median and largest, as two columns of a table."""
    return f"{median(values):.0f} s | {max(values):.0f} s" if values else "– | –"


def listed(numbers: Sequence[int]) -> str:
    """Numbers in words; normally one."""
    return ", ".join(map(str, numbers)) or "–"
