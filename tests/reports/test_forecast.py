"""Predictions in whole runs: made before what they predict, sealed, scored; and every way of cheating is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.run import Parts, run
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.reports.cli import main
from proving_ground.reports.figures import pick, pick_all
from proving_ground.reports.scaling import forecast, page, results, scoreboard, sections
from proving_ground.reports.scaling.results import Analysis
from tests.reports.faked import ProfiledCluster, case, faked, suite
from tests.reports.rewritten import resealed, rewrite


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    asked = suite(replace(case(), global_batch=8), case("fp16", compression="fp16"), nodes=(1, 2, 4, 8), predict=True)
    return faked(tmp_path_factory.mktemp("runs"), asked)


@pytest.fixture(scope="module")
def analysis(predicted: RunDir) -> Analysis:
    return results.analyse(predicted)


def verdict(analysis: Analysis) -> tuple[str, str]:
    found = [v for v in analysis.verdicts if v["check"] == "predicted"]
    return (found[0]["verdict"], found[0]["why"]) if found else ("", "")


def test_what_was_predicted_is_measured_later_within_three_percent(analysis: Analysis) -> None:
    errors = pick_all(analysis.figures, "prediction_error")
    assert {(f["where"]["case"], f["where"]["scaling"], f["where"]["nodes"]) for f in errors} == {
        ("resnet50", "weak", 4), ("resnet50", "weak", 8), ("resnet50", "strong", 4), ("resnet50", "strong", 8),
        ("fp16", "weak", 4), ("fp16", "weak", 8),
    }  # fmt: skip
    assert max(abs(f["median"]) for f in errors) < 3
    assert verdict(analysis)[0] == "pass"


def test_sizes_beyond_are_labelled_predicted_and_have_intervals(analysis: Analysis) -> None:
    for nodes in forecast.BEYOND:
        found = pick(analysis.figures, "prediction", case="resnet50", scaling="weak", nodes=nodes, of="efficiency")
        assert found is not None
        assert found["label"] == "predicted"
        assert found["ci95"][0] < found["median"] < found["ci95"][1]


def test_the_fit_s_own_sizes_are_not_predictions(analysis: Analysis) -> None:
    assert not [f for f in pick_all(analysis.figures, "prediction") if f["where"]["nodes"] <= 2]


def test_block_a_is_in_no_figure(analysis: Analysis) -> None:
    assert {f["n"] for f in pick_all(analysis.figures, "throughput")} == {3}
    assert not [t for cell in analysis.cells for t in cell.counted if t.plan["block"] != "b"]


def test_the_fit_never_sees_block_b(predicted: RunDir, tmp_path: Path) -> None:
    plan = predicted.read("plan")
    seen = {trial.plan["id"] for trial in forecast.block_a(predicted, plan)}
    assert seen == {trial["id"] for trial in plan["trials"] if trial["block"] == "a"}
    made = predicted.read("prediction")
    assert set(made["trials"]) == seen
    for file in predicted.events.glob("*.jsonl"):  # whatever block b holds, the prediction is the same
        copy = tmp_path / "events" / file.name
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(file.read_text() if file.name.partition(".")[0] in {*seen, "harness"} else "")
    again = forecast.document(plan, forecast.block_a(RunDir(tmp_path), plan), made["events_sha256"])
    assert again["predictions"] == json.loads(json.dumps(made["predictions"]), object_hook=tuples)


def tuples(made: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in made.items()}


@pytest.fixture
def copied(predicted: RunDir, tmp_path: Path) -> RunDir:
    there = tmp_path / "faked" / predicted.run_id
    for file in predicted.path.rglob("*"):
        if file.is_file():
            (there / file.relative_to(predicted.path)).parent.mkdir(parents=True, exist_ok=True)
            (there / file.relative_to(predicted.path)).write_bytes(file.read_bytes())
    return RunDir(there)


def better(run: RunDir) -> None:
    """A prediction changed after the fact."""
    made = run.read("prediction")
    made["predictions"][0]["step_s"][0] *= 1.001
    run.write("prediction", made)


def unsaid(run: RunDir) -> None:
    """No word of it in the history."""
    rewrite(run, lambda records: [it for it in records if it["event"] != "prediction"])


def late(run: RunDir) -> None:
    """Recorded when block B had begun."""

    def at_the_end(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        t = next(it for it in records if it["event"] == "run_end")["t"]
        return [{**it, "t": t} if it["event"] == "prediction" else it for it in records]

    rewrite(run, at_the_end)


def other_events(run: RunDir) -> None:
    """Block A is another one than the fit has seen."""
    first = min(run.events.glob("t*.jsonl"))
    first.write_text(first.read_text().replace('"samples":4', '"samples":5', 1))


@pytest.mark.parametrize(
    ("cheat", "said"),
    [(better, "not the one that the harness recorded"), (unsaid, "the harness recorded no prediction"),
     (late, "block b had begun when it was recorded"), (other_events, "are not those that the fit has seen")],
)  # fmt: skip
def test_cheating_makes_it_unknown(copied: RunDir, cheat: Callable[[RunDir], None], said: str) -> None:
    cheat(copied)
    resealed(copied)
    value, why = verdict(results.analyse(copied))
    assert value == "unknown"
    assert "not shown to have been made beforehand: " in why
    assert said in why


def test_a_wrong_prediction_fails(copied: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = copied.read("prediction")
    for row in wrong["predictions"]:
        row["step_s"][0] *= 1.1
    copied.write("prediction", wrong)
    resealed(copied)
    monkeypatch.setattr(scoreboard, "doubts", lambda *_: iter(()))
    assert verdict(results.analyse(copied))[0] == "fail"


def test_a_run_without_a_prediction_is_not_judged_by_one(tmp_path: Path) -> None:
    analysis = results.analyse(faked(tmp_path, suite()))
    assert verdict(analysis) == ("", "")
    assert sections.line(analysis) == ""


def test_it_is_made_once_and_not_afterwards(predicted: RunDir, copied: RunDir) -> None:
    with pytest.raises(RunDirError, match="made once"):
        forecast.write(predicted)
    (copied.path / "prediction.json").unlink()
    with pytest.raises(RunDirError, match="block b has begun"):
        forecast.write(copied)


def refusal(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Why a changed plan cannot be predicted."""
    said = []

    def predict(store: RunDir) -> None:
        plan = store.read("plan")
        change(plan)
        with pytest.raises(RunDirError) as error:
            forecast.document(plan, forecast.block_a(store, plan), "")
        said.append(str(error.value))

    run(suite(predict=True, repeats=1), ProfiledCluster(), tmp_path, Parts(between=predict))
    return said[0]


def test_a_fit_with_one_size_is_refused(tmp_path: Path) -> None:
    def one(plan: dict[str, Any]) -> None:
        plan["trials"] = [it for it in plan["trials"] if it["nodes"] == 1]

    assert "a fit needs two sizes, and these ran to their end: 1" in refusal(tmp_path, one)


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    def another(plan: dict[str, Any]) -> None:
        plan["profiles"]["resnet50-cpu"] = {**plan["profiles"]["resnet50-cpu"], "model": "vit_b_16"}

    assert "profile 'resnet50-cpu' is of vit_b_16, not resnet50" in refusal(tmp_path, another)


def test_a_case_without_a_profile_is_refused(tmp_path: Path) -> None:
    def bare(plan: dict[str, Any]) -> None:
        for trial in plan["trials"]:
            trial["bound"] = None

    assert "nothing is known of its gradients" in refusal(tmp_path, bare)


def test_no_block_a_no_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = faked(tmp_path, suite())
    (store.path / "seal.json").unlink()
    assert main(["predict", str(store.path)]) == 2
    assert "its plan has no block a to fit; the suite needs `predict_from`" in capsys.readouterr().err


def test_terminal_and_page_show_it(analysis: Analysis, predicted: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(predicted.path), "--no-html"]) in (0, 1)
    assert "predicted from 1 and 2 nodes: resnet50 weak at 4: " in capsys.readouterr().out
    made = page.html(analysis)
    assert "Predicted, then measured" in made
    assert "before any other size ran; its hash is in the history" in made
    assert made.count("not run") >= len(forecast.BEYOND)
