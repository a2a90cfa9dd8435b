"""`results.json`, and the documents of a run directory that it is made from. Used by every kind of report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from proving_ground.bench import contract, rundir
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.reports import history
from proving_ground.reports.figures import Figure
from proving_ground.reports.verdicts import Verdict

SCHEMA_FILE = Path(__file__).with_name("results.schema.json")

COUNT, TEXT = {"type": "integer", "minimum": 0}, {"type": "string"}
ANYTHING = jsonschema.Draft202012Validator({"type": "object"})
NEEDED = {
    "plan": jsonschema.Draft202012Validator({
        "type": "object", "required": ["trials", "cluster"], "properties": {
            "cluster": {"type": "object", "required": ["name"], "properties": {"name": TEXT}},
            "trials": {"type": "array", "items": {
                "type": "object", "required": ["id", "case", "workload", "nodes", "repeat", "steps", "scaling"],
                "properties": {
                    "id": TEXT, "case": TEXT, "workload": TEXT, "scaling": {"type": "array", "items": TEXT},
                    "nodes": COUNT, "repeat": COUNT, "steps": COUNT, "warmup_steps": COUNT,
                    "faults": {"type": ["array", "null"], "items": {"type": "object", "required": ["id"]}},
                },
            }},
        },
    }),
}  # fmt: skip
"""What of a run's documents is read without asking; what was damaged otherwise is met where it is read."""


class Listed:
    """What an analysis of either kind has of its `results.json`."""

    results: Mapping[str, Any]

    @property
    def figures(self) -> list[Figure]:
        """The figures of `results.json`."""
        return list(self.results["figures"])

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts of `results.json`."""
        return list(self.results["verdicts"])


def read_document(run: RunDir, name: str) -> Any:  # noqa: ANN401 - JSON
    """One of the run's JSON documents, or RunDirError when what is read of it is missing or of another kind."""
    found = run.read(name)
    error = next(NEEDED.get(name, ANYTHING).iter_errors(found), None)
    if error is None:
        return found
    what = f"must be {error.validator} {error.validator_value}"
    if error.validator == "required":
        what = f"lacks {', '.join(key for key in error.validator_value if key not in error.instance)}"
    place = error.json_path.removeprefix("$").removeprefix(".")
    raise RunDirError(f"{run.path / name}.json: {place and place + ' '}{what}; was it changed by hand?")


def seal_state(run: RunDir) -> tuple[bool, list[str]]:
    """Whether the run was sealed as complete, and what differs from the seal; never sealed is incomplete."""
    if not (run.path / "seal.json").exists():
        return False, []
    return bool(run.read("seal").get("complete")), rundir.verify(run)


def read_records(run: RunDir, problems: list[str], notes: list[str]) -> Iterator[history.Record]:
    """What the processes wrote down: from the history, where it is there and none of what differs from the seal.

    A history that is not what the event files say is one more of the `problems` once all is read.
    """
    trust = run.history.exists() and not any(line.startswith("history.jsonl") for line in problems)
    return history.records(run, problems=problems if trust else None, notes=notes)


def codes(provenance: Mapping[str, Any]) -> list[str]:
    """The code of every sitting, as a commit with what was changed since; the first sitting's first, each once."""
    every = [provenance.get("git", {}), *(it.get("git", {}) for it in provenance.get("sittings", ()))]
    said = (
        str(git.get("commit") or "not known") + " with uncommitted changes" * bool(git.get("dirty")) for git in every
    )
    return list(dict.fromkeys(said))


def mixed(provenance: Mapping[str, Any]) -> list[str]:
    """That a run was resumed with other code than it began with; empty where it was not."""
    found = codes(provenance)
    return [f"this run was resumed with other code: {', then '.join(found)}"] if len(found) > 1 else []


def cores_of(provenance: Mapping[str, Any]) -> int:
    """The machine's cores; 1 where nobody wrote them down."""
    return int(provenance.get("host", {}).get("cores") or 1)


def document(
    run: RunDir,
    cluster: str,
    listed: Sequence[Figure],
    verdicts: Sequence[Verdict],
    trials: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The public contract, checked against its own schema; a benchmark has no `trials`."""
    made = {
        "schema": contract.SCHEMA,
        "suite": run.suite,
        "run_id": run.run_id,
        "cluster": cluster,
        "figures": [without_nan(found) for found in listed],
        "verdicts": list(verdicts),
        "trials": list(trials),
    }
    jsonschema.validate(made, json.loads(SCHEMA_FILE.read_text()))
    return made


def without_nan(found: Figure) -> Figure:
    """The figure as it was, or RunDirError: a figure that is no number must never have been made."""
    if not all(math.isfinite(value) for value in (found["median"], *found["values"], *(found["ci95"] or ()))):
        raise RunDirError(
            f"figure {found['name']} {found['where']}: not a number; the step times in the events make no sense"
        )
    return found


def text(made: Mapping[str, Any]) -> str:
    """The document as JSON with one figure, verdict or trial a line: short, and good to read and to compare."""
    lines = []
    for key, value in made.items():
        if isinstance(value, list) and value:
            rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value)
            lines.append(f' "{key}": [\n  {rows}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(run: RunDir, made: Mapping[str, Any]) -> None:
    """Write `results.json`, whole or not at all."""
    rundir.write_atomic(run.results, text(made))
