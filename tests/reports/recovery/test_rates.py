"""The learning rate of every step against its rule: a defect that job and twin share has no other witness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proving_ground.reports.recovery import rates, results
from proving_ground.reports.recovery.results import Analysis
from proving_ground.training.config import from_dict
from proving_ground.training.loop import learning_rate
from tests.reports.recovery.synthetic import Fault, Knobs, Record, make
from tests.reports.rewritten import rewrite

STEPS, FAULT = 120, Fault("f01", "worker_kill", 53, "n2")
RULE = {
    "lr": 0.2, "base_batch": 32, "scaling": "linear", "warmup_steps": 10, "schedule": "cosine", "steps": STEPS,
    "global_batch": 96,
}  # fmt: skip
RATES = rates.by_rule(RULE, np.arange(1.0, STEPS + 1))


@pytest.mark.parametrize("scaling", ["none", "sqrt", "linear"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_the_rule_is_worked_out_as_the_trainer_does(scaling: str, schedule: str, warmup: int) -> None:
    said = {"lr_scaling": scaling, "lr_schedule": schedule, "lr_warmup_steps": warmup}
    config = from_dict({"lr": 0.3, "base_batch": 32, "global_batch": 96, "steps": STEPS, **said})
    rule = {**RULE, "lr": 0.3, "scaling": scaling, "schedule": schedule, "warmup_steps": warmup}
    theirs = [learning_rate(config, step, STEPS) for step in range(STEPS)]
    assert rates.by_rule(rule, np.arange(1.0, STEPS + 1)) == pytest.approx(theirs, rel=1e-12)


def analysed(folder: Path, told: dict[str, Any] | None = None, frozen_from: int = STEPS + 1) -> Analysis:
    """A run that keeps to the rule that it says; from some step on the rate stands still, in job and twin alike."""

    def with_rule(records: list[Record]) -> list[Record]:
        for record in records:
            if record["event"] == "ready":
                record["rate"] = {**RULE, **(told or {})}
            if record["event"] in ("step", "fingerprint"):
                record["lr"] = float(RATES[min(record["step"], frozen_from) - 1])
        return records

    return results.analyse(rewrite(make(folder, Knobs(steps=STEPS, faults=(FAULT,), twins=(3,))), with_rule))


def of(analysis: Analysis, check: str) -> set[str]:
    return {v["verdict"] for v in analysis.verdicts if v["check"] == check}


def test_who_keeps_to_the_rule_recovers(tmp_path: Path) -> None:
    analysis = analysed(tmp_path)
    assert [it["outcome"] for it in analysis.trials] == ["recovered"]
    assert "fail" not in {v["verdict"] for v in analysis.verdicts}


def test_a_rate_that_stands_still_in_job_and_twin_is_seen(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, frozen_from=60)
    assert [it["outcome"] for it in analysis.trials] == ["wrong"]
    assert "step 61" in analysis.trials[0]["why"], analysis.trials[0]["why"]


def test_without_the_rule_nothing_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the twin, which has the same defect, counts alone."""
    twins = rates.by_twin
    monkeypatch.setattr(rates, "by_rule", lambda _rule, steps: twins(None, steps))
    assert [it["outcome"] for it in analysed(tmp_path, frozen_from=60).trials] == ["recovered"]


@pytest.mark.parametrize(
    ("key", "value"), [("lr", 0.1), ("scaling", "none"), ("warmup_steps", 0), ("schedule", "constant")]
)
def test_a_rule_that_is_not_the_suite_s_is_named(key: str, value: object, tmp_path: Path) -> None:
    asked = {"lr": 0.2, "lr_scaling": "linear", "lr_warmup_steps": 10, "lr_schedule": "cosine", "base_batch": 32}
    run = make(tmp_path, Knobs(steps=STEPS, faults=(FAULT,), twins=(3,)))
    for name, rows in (("plan", "trials"), ("spec", "cases")):
        document = run.read(name)
        changed = [{**it, "training": {**(it.get("training") or {}), **asked}} for it in document[rows]]
        run.write(name, {**document, rows: changed})

    def with_rule(records: list[Record]) -> list[Record]:
        for record in records:
            if record["event"] == "ready":
                record["rate"] = {**RULE, "global_batch": 96, key: value}
        return records

    analysis = results.analyse(rewrite(run, with_rule))
    assert "fail" in of(analysis, "as_configured")
    assert any(f"{key} {value!r} instead of" in v["why"] for v in analysis.verdicts)


def test_a_rate_that_is_no_number_is_wrong_and_no_traceback(tmp_path: Path) -> None:
    def diverged(records: list[Record]) -> list[Record]:
        for record in records:
            if record["event"] == "fingerprint" and record.get("trial") == "t001" and record["step"] > FAULT.step:
                record["lr"] = "NaN"  # as JSON has it
        return records

    analysis = results.analyse(rewrite(make(tmp_path, Knobs(faults=(FAULT,))), diverged))
    assert [it["outcome"] for it in analysis.trials] == ["wrong"]
    assert "learning rate" in analysis.trials[0]["why"]
