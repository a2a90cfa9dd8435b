"""What a search found and how it is judged, from its directory alone. Called by `search.report` and tests.

The document has the shape of a run's `results.json`: figures, verdicts, trials (`reports/README.md`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proving_ground.bench.rundir import RunDirError
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from proving_ground.search import ledger, store
from proving_ground.search.ledger import Record, Trial
from proving_ground.search.progress import best
from proving_ground.search.spec import Search
from proving_ground.search.store import SearchDir
from proving_ground.search.times import Times, read, spent, times

SCHEMA = "proving-ground/search/1"


@dataclass(frozen=True)
class Analysis:
    """A search, read and judged."""

    run: SearchDir
    search: Search
    asked: Mapping[str, Any]  # the whole of `search.json`
    records: Sequence[Record]
    trials: Mapping[str, Trial]
    best: Trial | None
    times: Times
    figures: Sequence[Mapping[str, Any]]
    verdicts: Sequence[Mapping[str, Any]]

    @property
    def resumed(self) -> bool:
        """Whether a later command went on with it."""
        return bool(self.run.read("provenance").get("sittings"))

    @property
    def document(self) -> dict[str, Any]:
        """`results.json`."""
        return {
            "schema": SCHEMA, "suite": self.run.suite, "run_id": self.run.run_id, "cluster": "ray",
            "figures": list(self.figures), "verdicts": list(self.verdicts),
            "trials": [trial_row(self, it) for it in self.trials.values()],
        }  # fmt: skip

    @property
    def overall(self) -> str:
        """All verdicts together."""
        found = {it["verdict"] for it in self.verdicts}
        return FAIL if FAIL in found else UNKNOWN if UNKNOWN in found else PASS


def analyse(run_dir: SearchDir) -> Analysis:
    """Read and judge.

    Raises:
        RunDirError: nothing was recorded, or it cannot be read.
    """
    search = store.asked(run_dir)
    if not isinstance(run_dir.read("provenance"), dict):
        raise RunDirError(f"{run_dir.path}: provenance.json: must be a table")
    records = ledger.read(run_dir.ledger)
    if not records:
        raise RunDirError(f"{run_dir.path}: trials.jsonl: nothing was recorded")
    trials = ledger.trials(records)
    ledger.check_params(trials, search.space, run_dir.ledger)
    took = times(run_dir, records, search.concurrent)
    found = best(search, trials)
    figures = [*outcome(search, found), *steps(search, trials, took), *overheads(took)]
    verdicts = judged(run_dir, search, records, trials)
    return Analysis(run_dir, search, run_dir.read("search"), records, trials, found, took, figures, verdicts)


def figure(name: str, unit: str, values: Sequence[float], **where: str | float) -> dict[str, Any]:
    """One figure; of a search there is one value, and no interval."""
    return {
        "name": name, "unit": unit, "label": "real", "where": where, "n": len(values), "median": values[0],
        "ci95": None, "values": list(values),
    }  # fmt: skip


def outcome(search: Search, found: Trial | None) -> Iterator[dict[str, Any]]:
    """The best value."""
    if found and (point := found.best(search.mode)):
        yield figure("best", search.metric, [point[1]], trial=found.id, step=point[0], mode=search.mode)


def steps(search: Search, trials: Mapping[str, Trial], took: Times) -> Iterator[dict[str, Any]]:
    """Steps: made, of all planned trials in full, not made since the algorithm stopped a trial, made again."""
    made, in_full = sum(it.steps for it in took.trials.values()), search.planned * search.steps
    stopped = [it for it in trials.values() if it.state == ledger.STOPPED and not it.cut_off]
    saved = sum(search.steps - it.steps for it in stopped)
    again = sum(max(0, it.steps - trials[name].steps) for name, it in took.trials.items() if trials[name].starts > 1)
    yield figure("steps_made", "steps", [made])
    yield figure("steps_in_full", "steps", [in_full])
    yield figure("steps_saved", "steps", [saved])
    yield figure("steps_saved_share", "%", [100 * saved / in_full])
    yield figure("steps_of_stopped", "steps", [sum(it.steps for it in stopped)])
    yield figure("steps_again", "steps", [again])


def overheads(took: Times) -> Iterator[dict[str, Any]]:
    """Seconds of the slots by what they went into, and the share in which no trial trained; by trial too."""
    for part, seconds in took.parts.items():
        yield figure("slot_time", "s", [seconds], part=part)
    if took.overhead is not None:
        yield figure("overhead", "%", [100 * took.overhead])
    for name, held in took.held_s.items():
        if held > 0 and took.trials[name].seconds:
            yield figure("trial_training", "s", [took.trials[name].seconds], trial=name)
            yield figure("trial_overhead", "%", [100 * (1 - took.trials[name].seconds / held)], trial=name)


def judged(
    run_dir: SearchDir, search: Search, records: Sequence[Record], trials: Mapping[str, Trial]
) -> list[dict[str, Any]]:
    """Every check."""
    made = [sealed(run_dir), completed(search, records, trials), once(records), told(trials)]
    if search.budget_steps is not None or search.budget_s is not None:
        made.append(budget(search, *spent(run_dir, records)))
    if search.algorithm == "pbt":
        made.append(copied(run_dir, trials))
    return made


def verdict(check: str, value: str, why: str) -> dict[str, Any]:
    """One verdict, about the whole search."""
    return {"check": check, "verdict": value, "why": why, "where": {}}


def sealed(run_dir: SearchDir) -> dict[str, Any]:
    """Whether the files are as the search left them."""
    differs = store.unlike_the_seal(run_dir)
    return verdict("sealed", UNKNOWN if differs else PASS, differs or "every file is as it was left")


def completed(search: Search, records: Sequence[Record], trials: Mapping[str, Trial]) -> dict[str, Any]:
    """Whether every planned trial has ended, or the budget ended the search."""
    ended = sum(it.ended for it in trials.values())
    over = next((it["why"] for it in reversed(records) if it["event"] == ledger.OVER), "")
    if ended == search.planned or over.startswith("budget"):
        return verdict("completed", PASS, f"{ended} of {search.planned} trials have ended; {over}")
    return verdict("completed", UNKNOWN, f"{ended} of {search.planned} trials have ended: resume the search")


def once(records: Sequence[Record]) -> dict[str, Any]:
    """Whether no trial was run twice: begun again after it had ended, or by two drivers at a time."""
    again = ledger.repeated(records)
    if again:
        return verdict("once", FAIL, f"begun or ended more than once: {', '.join(again)}")
    if ledger.interleaved(records):
        return verdict("once", FAIL, "two drivers wrote to the ledger at a time")
    return verdict("once", PASS, f"no trial that had ended was begun again, in {ledger.sittings(records)} sittings")


def told(trials: Mapping[str, Trial]) -> dict[str, Any]:
    """Whether some trial did not fail."""
    failed = [it for it in trials.values() if it.state == ledger.FAILED]
    if trials and len(failed) == len(trials):
        return verdict("trials", FAIL, f"all {len(failed)} trials failed; the first: {failed[0].why}")
    count = f"{len(failed)} of {len(trials)} trials failed"
    return verdict("trials", PASS, f"{count}; the first: {failed[0].why}" if failed else count)


def budget(search: Search, made: int, spent_s: float) -> dict[str, Any]:
    """Whether what was allowed suffices for what was used; trials that run meanwhile may end their piece of steps."""
    pieces = search.concurrent * search.every
    said = f"{made} steps, {spent_s:.1f} s"
    if search.budget_steps is not None and made > search.budget_steps + pieces:
        return verdict("budget", FAIL, f"{said}; allowed: {search.budget_steps} steps and {pieces} in hand")
    if search.budget_s is not None and spent_s > search.budget_s + GRACE_S:
        return verdict("budget", FAIL, f"{said}; allowed: {search.budget_s:g} s and {GRACE_S:g} s to end")
    return verdict("budget", PASS, said)


GRACE_S = 30.0
"""In which what runs when the time is over may end."""


def copied(run_dir: SearchDir, trials: Mapping[str, Trial]) -> dict[str, Any]:
    """Whether what a trial copied is, by its hash, what the other one's trainer had saved and this one's has loaded."""
    copies = [(it.id, copy) for it in trials.values() for copy in it.copies]
    for name, copy in copies:
        saved = hashes(run_dir, copy["donor"], "checkpoint")
        loaded = hashes(run_dir, name, "resume")
        if copy["sha256"] not in saved or copy["sha256"] not in loaded:
            return verdict("copied", FAIL, f"{name} says it copied {copy['donor']}, and the trainers' events do not")
    if not copies:
        return verdict("copied", UNKNOWN, "no trial copied another")
    return verdict("copied", PASS, f"{len(copies)} copies: hash saved by the one trainer and loaded by the other")


def hashes(run_dir: SearchDir, trial: str, event: str) -> set[str]:
    """The hashes of checkpoints that a trial's trainer has saved, or loaded."""
    return {str(it.get("sha256")) for it in read(run_dir.of_trial(trial)) if it["event"] == event}


def trial_row(analysis: Analysis, trial: Trial) -> dict[str, Any]:
    """A trial in the document."""
    found, times = trial.best(analysis.search.mode), analysis.times
    return {
        "trial": trial.id, "params": dict(trial.params), "best_params": dict(trial.best_params(analysis.search.mode)),
        "state": trial.state, "why": trial.why, "steps": trial.steps,
        "best": found[1] if found else None, "best_step": found[0] if found else None,
        "last": trial.curve[-1][1] if trial.curve else None, "starts": trial.starts,
        "training_s": times.trials[trial.id].seconds, "held_s": times.held_s[trial.id],
        "copies": [{key: it[key] for key in ("donor", "step", "sha256")} for it in trial.copies],
        "curve": [list(point) for point in trial.curve],
    }  # fmt: skip


def text(analysis: Analysis) -> str:
    """`results.json` as it is written."""
    return json.dumps(analysis.document, indent=1, sort_keys=True) + "\n"
