"""Is a sealed record that was changed afterwards noticed? `python -m tests.validations tampering [--minutes M]`.

Records one small chaos run of real jobs, or takes `--run`. Changes a copy in one way at a time, at every fault; seals
it again, so that no hash gives it away; and judges it. A change is noticed if something that passed does not pass any
more: named (a fail) or unknown. The copy that nobody changed must be judged as the run itself, which is the control.
The ways are in `tests.validations.tampers`; those that say nothing about training have a rule there that says why.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from proving_ground.reports.recovery import results
from proving_ground.reports.recovery.incidents import Incident
from tests.reports.rewritten import Record, resealed, rewrite
from tests.validations.chaos_runs import chaos_run
from tests.validations.sitting import MEASURED, ROOT, Document, Sitting, State, keep, load, origin
from tests.validations.tampers import CONTROL, EQUIVALENT, ON_DISK, TAMPERS, Scene

FILE = MEASURED / "tampering.json"
COMMAND = "nox -s validate -- tampering"
SUITE = Path(__file__).with_name("tampering.toml")
RUNS = ROOT / "runs"
ONE_S = 10.0  # what one change may take, before it is known
NAMED, UNKNOWN, UNNOTICED, NOT_HERE = "named", "unknown", "unnoticed", "not here"
SAYS_NOTHING = "says nothing"  # unnoticed, by a rule
ORDER = ("fail", "unknown", "pass")
OUTCOMES = {results.RECOVERED: "pass", results.WRONG: "fail", results.STUCK: "fail", results.SLOW: "fail",
            results.INVALID: "unknown",
            results.UNPROVEN: "unknown"}  # fmt: skip

KINDS, PLACES = 1 + len(TAMPERS) + len(ON_DISK), 12  # ways with the control, and faults of the suite

Values = Mapping[tuple[str, ...], str]
"""(check, what it is about) → the worst verdict."""


@dataclass(frozen=True)
class Original:
    """The run that copies are made of, and how it is judged."""

    run: RunDir
    incidents: tuple[Incident, ...]
    values: Values

    @classmethod
    def of(cls, run: RunDir) -> Original:
        """As a report judges it."""
        analysis = results.analyse(run)
        return cls(run, tuple(one for one in analysis.incidents if one.injected), values_of(analysis))

    @property
    def places(self) -> dict[str, Incident]:
        """The faults of which a change is made, by name."""
        return {f"{one.job.id}.{one.fault}": one for one in self.incidents}


def values_of(analysis: results.Analysis) -> Values:
    """Every verdict by what it is about; the worst where there are several."""
    found: dict[tuple[str, ...], str] = {}
    for it in analysis.verdicts:
        key = (it["check"], *(f"{name}={it['where'][name]}" for name in sorted(it["where"])))
        found[key] = min(it["verdict"], found.get(key, "pass"), key=ORDER.index)
    for trial in analysis.trials:
        found["outcome", trial["trial"], trial["fault"]] = OUTCOMES[trial["outcome"]]
    return found


def main(argv: list[str]) -> int:
    """One sitting; exit status 1 if a change went unnoticed, or the control was judged otherwise than the run."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations tampering", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument("--run", type=Path, help="take this recorded run, and record none")
    parser.add_argument("--only", action="append", default=[], metavar="KIND", help="these kinds only")
    options = parser.parse_args(argv)
    document = load(FILE, COMMAND, state, anywhere=True, partial=bool(options.only))
    run = the_run(document, options.run)
    document["cells"].setdefault("run", f"{run.suite}/{run.run_id}")
    original = Original.of(run)
    sitting, spent = Sitting(options.minutes), ONE_S
    for kind, place in left(document, original, options.only):
        before_s = sitting.seconds_left()
        if not sitting.fits(spent):
            break
        outcome = tampered(original, kind, original.places[place])
        document["cells"].setdefault("kinds", {}).setdefault(kind, {})[place] = outcome
        document |= origin()
        keep(FILE, document)
        spent = max(spent, before_s - sitting.seconds_left())
        print(f"{kind:<32} {place:<10} {original.places[place].kind:<20} {outcome} · {sitting.left()}", flush=True)
    print(told(document))
    return int(not fine(document))


def the_run(document: Document, asked: Path | None) -> RunDir:
    """The run to be changed: the one that earlier sittings took, if it is still there."""
    known = document["cells"].get("run")
    if asked:
        found = RunDir(asked.resolve())
    elif known and (RUNS / known / "history.jsonl").exists():
        return RunDir(RUNS / known)
    else:
        found = chaos_run(RUNS, str(SUITE))
    if known != f"{found.suite}/{found.run_id}":
        document["cells"].clear()  # what was found of another run does not count for this one
    return found


def left(document: Document, original: Original, only: list[str]) -> Iterator[tuple[str, str]]:
    """(kind, place) of what is still to be done, kind by kind; the control first."""
    done = document["cells"].get("kinds", {})
    for kind in only or [CONTROL, *TAMPERS, *ON_DISK]:
        for place in original.places:
            if place not in done.get(kind, {}):
                yield kind, place


def tampered(original: Original, kind: str, one: Incident) -> str:
    """What comes of one change at one fault."""
    with tempfile.TemporaryDirectory() as name:
        run = RunDir(Path(name) / original.run.suite / original.run.run_id)
        shutil.copytree(original.run.path, run.path, ignore=shutil.ignore_patterns("logs", "report.html"))
        run.logs.mkdir(exist_ok=True)
        if not changed(run, kind, one):
            return NOT_HERE
        return noticed(original.values, values_of(results.analyse(run)))


def changed(run: RunDir, kind: str, one: Incident) -> bool:
    """Change a run in one way and seal it again; whether there was anything to change."""
    if kind in ON_DISK:
        did = ON_DISK[kind](run, one)
        rundir.seal(run, complete=True)
        return did
    did = kind == CONTROL
    scene = Scene(one, run.read("plan"), run.read("spec"))

    def change(records: list[Record]) -> list[Record]:
        nonlocal did
        scene.records = records
        did = did or TAMPERS[kind](scene)
        return scene.records

    before = copy.deepcopy(scene.plan)
    rewrite(run, change)
    if scene.plan != before:
        run.write("plan", scene.plan)
        resealed(run)
    return did


def noticed(before: Values, after: Values) -> str:
    """Whether something that passed does not any more: the best that a change can be answered with."""
    worse = [after.get(key, "unknown") for key, value in before.items() if value == "pass"]
    new = [value for key, value in after.items() if key not in before and value != "pass"]
    return NAMED if "fail" in worse + new else UNKNOWN if "unknown" in worse + new else UNNOTICED


def counts(document: Document) -> dict[str, Counter[str]]:
    """Kind → how often it was what."""
    return {kind: Counter(found.values()) for kind, found in document["cells"].get("kinds", {}).items()}


def fine(document: Document) -> bool:
    """Whether no change that says anything about training was unnoticed, and the control was."""
    found = counts(document)
    silent = [kind for kind, it in found.items() if kind != CONTROL and it[UNNOTICED] and kind not in EQUIVALENT]
    return not silent and set(found.get(CONTROL, ())) <= {UNNOTICED}


def state(document: Mapping[str, Any]) -> State:
    """How far it is: changes at twelve faults each, the control among them. A change that fits no fault was tried."""
    found = counts(dict(document))
    silent = sum(it[UNNOTICED] for kind, it in found.items() if kind != CONTROL and kind not in EQUIVALENT)
    control = found.get(CONTROL, Counter[str]())
    bad = silent + control.total() - control[UNNOTICED]
    return State(sum(it.total() for it in found.values()), KINDS * PLACES, "changes tried", bad)


def told(document: Document) -> str:
    """The result in lines."""
    found = counts(document)
    lines = [f"{'':<32} named unknown unnoticed not here"]
    lines += [
        f"{kind:<32} {it[NAMED]:>5} {it[UNKNOWN]:>7} {it[UNNOTICED]:>9} {it[NOT_HERE]:>8}"
        + (f"  equivalent: {EQUIVALENT[kind]}" if kind in EQUIVALENT and it[UNNOTICED] else "")
        for kind, it in found.items()
    ]
    return "\n".join(lines)


def table(document: Mapping[str, Any]) -> str:
    """How many kinds of change there were, and how they were answered."""
    found, kinds = summary(dict(document)), counts(dict(document))
    head = ["kinds of change", "changes", "named", "unknown", "says nothing", "unnoticed"]
    values = [found[name] for name in ("kinds", "changes", NAMED, UNKNOWN, SAYS_NOTHING, UNNOTICED)]
    said = [f"| {' | '.join(head)} |", "|" + "--:|" * len(head), f"| {' | '.join(map(str, values))} |"]
    unnoticed = {kind: it[UNNOTICED] for kind, it in kinds.items() if it[UNNOTICED]}
    same = [f"- {kind} ({unnoticed[kind]}): {why}" for kind, why in EQUIVALENT.items() if kind in unnoticed]
    return (
        "\n".join([*said, *(["", "Changes that say nothing about training, and why:", *same] if same else [])]) + "\n"
    )


def summary(document: Document) -> dict[str, Any]:
    """Kinds, changes and what came of them, the control apart; those that a rule excuses are counted by themselves."""
    found = {kind: it for kind, it in counts(document).items() if kind != CONTROL}
    made = {kind: it for kind, it in found.items() if it.total() > it[NOT_HERE]}
    return {
        "kinds": len(made), "changes": sum(it.total() - it[NOT_HERE] for it in made.values()),
        **{name: sum(it[name] for it in made.values()) for name in (NAMED, UNKNOWN)},
        SAYS_NOTHING: sum(it[UNNOTICED] for kind, it in made.items() if kind in EQUIVALENT),
        UNNOTICED: sum(it[UNNOTICED] for kind, it in made.items() if kind not in EQUIVALENT),
    }  # fmt: skip
