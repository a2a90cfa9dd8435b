"""`results.json`, figures, page and terminal of a chaos run, as people and CI get them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from proving_ground.reports.cli import main
from proving_ground.reports.figures import pick, pick_all
from proving_ground.reports.recovery import effective, page, results, words
from proving_ground.reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import FAULTS, RUN_ID, Fault, Knobs, make

MANY = Knobs(
    steps=400,
    faults=tuple(Fault(f"f{n:02}", "worker_kill", 30 * n, f"n{1 + n % 3}", phase="forward" if n % 2 else "")
                 for n in range(1, 13)),
)  # fmt: skip


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return results.analyse(make(tmp_path_factory.mktemp("runs"), MANY))


def test_figures_are_grouped_and_keep_every_value(analysis: Analysis) -> None:
    found = pick(analysis.figures, "resume", kind="worker_kill", phase="forward", mechanism="restart")
    assert found is not None
    assert (found["n"], len(found["values"]), found["unit"], found["label"]) == (6, 6, "s", "emulated")
    assert found["median"] == pytest.approx(1.4)
    assert found["ci95"][0] <= found["median"] <= found["ci95"][1]
    lost = pick(analysis.figures, "lost_steps", phase="step")
    assert lost is not None
    assert lost["values"] == [0.0] * 6  # a checkpoint after every tenth step, a fault after every thirtieth
    assert pick(analysis.figures, "checkpoint_block")["median"] == pytest.approx(20.0)  # type: ignore[index]


def test_a_job_that_stays_slow_has_its_time_to_recovery_and_is_not_called_stuck(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path, Knobs(faults=FAULTS[:1], mutant="stays_slow")))
    assert words.title(found) == "0 of 1 kind of fault recovered; worker_kill stayed slow"
    assert "worker_kill stayed slow" in words.headline(found)
    assert "stuck" not in words.headline(found)
    resume = pick(found.figures, "resume")
    assert resume is not None
    assert resume["n"] == 1
    assert "slow" in page.html(found)


def test_what_is_known_of_an_invalid_fault_is_shown(tmp_path: Path) -> None:
    """No evidence that it happened; but the moments after it were recorded, and page and table have them."""
    found = results.analyse(make(tmp_path, Knobs(mutant="no_evidence")))
    trial, right = found.trials[0], results.analyse(make(tmp_path / "right")).trials[0]
    assert (trial["outcome"], right["outcome"]) == ("invalid", "recovered")
    assert trial["timeline"] == right["timeline"]
    shown = page.trial_row(trial, {}, {})
    assert shown["since"]["first_committed_step"] == pytest.approx(1.4)
    first = next(csv.DictReader(io.StringIO(page.trials_csv(found))))
    assert first["outcome"] == "invalid"
    assert float(first["first_committed_step"]) == pytest.approx(1.4)


def test_lost_work_is_the_time_of_the_steps_made_again(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path))
    values = {f["where"]["kind"]: (f["median"]) for f in found.figures if f["name"] == "lost_work_s"}
    assert values["worker_kill"] == pytest.approx(0.6)  # steps 21 to 26
    assert values["node_kill"] == pytest.approx(0.3)  # steps 51 to 53


def test_a_fault_costs_the_time_of_all_nodes_and_what_a_node_costs(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path), node_hour=36.0)
    where = {"kind": "worker_kill"}
    resume, lost, used, cost = (
        pick(found.figures, name, **where)["values"]  # type: ignore[index]
        for name in ("resume", "lost_work_s", "lost_node_s", "fault_cost")
    )
    nodes = found.jobs[0].job.nodes
    assert used == pytest.approx([nodes * (a + b) for a, b in zip(resume, lost, strict=True)])
    assert cost == pytest.approx([seconds * 0.01 for seconds in used])
    text = page.html(found)
    assert '<th class="num">costs</th>' in text
    unpriced = results.analyse(make(tmp_path / "again"))
    assert not [f for f in unpriced.figures if f["name"] == "fault_cost"]
    assert "--price-per-node-hour" in page.html(unpriced)


def test_trials_of_one_job_bound_nothing(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path))
    worst = pick(found.figures, "resume", kind="worker_kill")
    assert worst is not None
    assert words.largest(found, worst).endswith("trials of one job are not independent, so no bound follows")


@pytest.mark.parametrize(
    ("jobs", "percentile"),
    [
        ([[0.5, 0.6, 0.7]], None),  # one job
        ([[1.0] * 20, [2.0] * 20, [3.0] * 20], 36),  # three jobs of one value each: as good as three trials
        ([[it / 60, 1 + it / 60] for it in range(30)], 95),  # pairs that have nothing in common: sixty
    ],
)
def test_what_the_largest_bounds_follows_from_independent_trials(
    jobs: list[list[float]], percentile: int | None
) -> None:
    assert words.covered(jobs) == percentile


def test_effective_time_and_its_formula(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path, Knobs(steps=2000, faults=(Fault("f01", "worker_kill", 1005, "n2"),))))
    measured, formula = (pick(found.figures, "ettr", by=by) for by in ("measured", "formula"))
    assert measured is not None
    assert formula is not None
    assert measured["median"] == pytest.approx(formula["median"], abs=0.2)
    assert (measured["label"], formula["label"]) == ("emulated", "predicted")


def test_a_goodput_of_more_than_all_is_said_to_be_odd(tmp_path: Path) -> None:
    """Fewer nodes on few cores make quicker steps: beside the pace of all nodes that is more than the wall time."""
    found = results.analyse(make(tmp_path))
    assert "odd" not in words.ettr(found)
    for figure in pick_all(found.figures, "ettr", by="measured"):
        figure["median"] = 106.2
    assert words.ettr(found).startswith("goodput (ETTR) 106.2 %, which is odd: ")
    assert "which is odd" in page.answers(found)[-1]["more"]


def test_the_wall_time_is_accounted_for(tmp_path: Path) -> None:
    found = effective.costs(
        results.analyse(make(tmp_path, Knobs(faults=(Fault("f01", "worker_kill", 53, "n2"),)))).jobs[0]
    )
    assert found is not None
    assert found.shares["down"] * found.wall_s == pytest.approx(1.3, abs=0.001)
    assert found.shares["thrown away"] * found.wall_s == pytest.approx(0.3, abs=0.001)
    blocked = 12 * 0.02 / found.wall_s  # by twelve checkpoints
    assert found.shares["slower"] == pytest.approx(blocked, abs=0.005)


def test_what_the_machine_itself_varies_is_no_loss(tmp_path: Path) -> None:
    (twin, *_) = results.analyse(make(tmp_path, Knobs(faults=(Fault("f01", "worker_kill", 53, "n2"),)))).twins
    steps = twin.steps.assign(
        seconds=twin.steps["seconds"].where(twin.steps.index % 10 != 4, 0.4)
    )  # one in ten is slow
    steps["end"] = steps["begin"].iloc[0] + steps["seconds"].cumsum()
    found = effective.costs(replace(twin, steps=steps))
    assert found is not None
    assert found.measured == pytest.approx(1 - 12 * 0.02 / found.wall_s, abs=0.003)  # only the twelve checkpoints


def test_advice_is_predicted_and_has_the_best_interval() -> None:
    costs = effective.Costs(1000.0, 9000, 0.1, 10, 5.0, 100.0, 0.5)
    assert costs.best_interval_s == pytest.approx((2 * 0.5 * 100) ** 0.5)
    found = effective.advice(costs, {"unnoticed": 3.0, "loading": 1.0})
    assert found[0][0].startswith("a checkpoint every 100 steps (10 s) instead of every 100 s")
    assert found[0][1] == pytest.approx(100 * (costs.formula(interval_s=10) - costs.formula()))
    assert found[1][0] == "halving the longest phase of recovery, unnoticed (3.00 s)"


def test_where_no_fault_takes_training_back_no_interval_is_advised() -> None:
    alive = effective.Costs(1000.0, 9000, 0.1, 10, 5.0, 100.0, 0.5, back=0.0)
    assert alive.best_interval_s == math.inf
    assert alive.formula() == pytest.approx((1 - 0.01 * 5) / 1.005)
    assert not [words for words, _ in effective.advice(alive, {"unnoticed": 3.0}) if "checkpoint" in words]


def test_trials_of_the_contract(analysis: Analysis) -> None:
    trial = analysis.trials[0]
    assert (trial["fault"], trial["kind"], trial["phase"], trial["outcome"]) == (
        "f01", "worker_kill", "forward", "recovered",
    )  # fmt: skip
    assert trial["command"] == f"pg chaos replay runs/kill/{RUN_ID} f01"
    assert set(trial["verdicts"]) == set(results.CHECKS)


def test_same_directory_same_bytes(tmp_path: Path) -> None:
    run = make(tmp_path)
    texts = []
    for _ in range(2):
        assert main([str(run.path)]) == 0
        texts.append((run.results.read_bytes(), run.report.read_bytes()))
    assert texts[0] == texts[1]


def test_page_says_it_all_and_loads_nothing(analysis: Analysis) -> None:
    html = page.html(analysis)
    assert "This run is incomplete" not in html
    for said in ("worker_kill", "in forward", "this kernel has no netem", "bitwise equal", "chaos replay"):
        assert said in html
    outside = re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"', html)
    assert outside == []
    anchors = set(re.findall(r'href="#([^"]+)"', html))
    assert anchors <= set(re.findall(r'id="([^"]+)"', html))
    assert len(html) < 1_000_000


def test_the_matrix_lists_what_was_tried_and_has_no_gaps(tmp_path: Path) -> None:
    """Of kinds and phases most pairs are not tried: a cell for each was a table of dashes."""
    phases = ("", "forward", "allreduce", "before_checkpoint", "checkpoint_write", "before_rename")
    kinds = ("worker_kill", "node_kill", "hang")
    faults = tuple(Fault(f"f{n:02}", kinds[n % 3], 30 * n, "n2", phase=it) for n, it in enumerate(phases, 1))
    html = page.html(results.analyse(make(tmp_path, Knobs(steps=240, faults=faults))))
    (matrix,) = re.findall(r'<table class="cells">.*?</table>', html, re.DOTALL)
    cells = re.findall(r"<li.*?</li>", matrix, re.DOTALL)
    assert len(cells) == len(faults) < len(phases) * len(kinds)
    assert re.findall(r">\s*[–—-]\s*<", matrix) == []


def test_page_of_many_faults_stays_small(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MOST_ROWS": 4, "A_FEW": 2, "SOME_ROWS": 3, "PACK_BYTES": 100}.items():
        monkeypatch.setattr(page, name, value)
    html = page.html(analysis)
    assert "Listed are 4: " in html
    assert 'download="results.json.gz"' in html
    assert "and 9 more, in" in html


def test_trials_as_csv(analysis: Analysis) -> None:
    rows = list(csv.DictReader(io.StringIO(page.trials_csv(analysis))))
    assert len(rows) == 12
    assert float(rows[0]["first_committed_step"]) == pytest.approx(1.4)
    assert rows[0]["same_training"] == "pass"


def test_words_of_a_failed_run(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path, Knobs(mutant="second_writer")))
    assert words.headline(found).startswith(
        "3 of 4 kinds of fault recovered (4 faults in all); worker_kill went wrong."
    )
    assert words.reasons(found)[0].startswith("f01 worker_kill: one_writer: ")


def test_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path)
    assert main([str(run.path), "--no-html"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert re.search(r"node_kill +allreduce +✓ 1 of 1 +0\.40 +1\.40", out)
    assert "verdict: pass (4 recovered)" in out
    assert "Not possible here: delay: this kernel has no netem" in out
    assert "repeat:  pg chaos run --suite kill\n" in out
    assert f"replay:  pg chaos replay {run.path} f01" in out, "where it lies, wherever the others do"
    assert not run.report.exists()


def test_a_replay_is_repeated_by_its_own_faults(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path))
    replay = replace(found, provenance={"argv": ["-m", "replay", "latest", "f02"]})
    assert words.again(replay) == f"pg chaos replay {found.run.path} f01..f04", "`latest` is another run by now"
    trial = found.plan["trials"][0]
    one = replace(replay, plan={**found.plan, "trials": [{**trial, "faults": trial["faults"][:1]}]})
    assert words.again(one) == f"pg chaos replay {found.run.path} f01"


@pytest.mark.parametrize(
    ("kind", "why", "said"),
    [
        ("delay", "delay: this kernel has no netem", "this kernel has no netem"),
        ("gpu_memory", "gpu memory: no NVIDIA GPU: NVML", "no NVIDIA GPU: NVML"),
        ("node_kill", "links: off", "links: off"),
        ("delay", "off", "off"),
    ],
)
def test_an_ability_with_the_name_of_its_fault_is_said_once(kind: str, why: str, said: str) -> None:
    assert words.without(kind, why) == said


def test_table_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proving_ground.reports.recovery.terminal.WIDE", 80)
    run = make(tmp_path)
    assert main([str(run.path), "--no-html"]) == 0
    table = capsys.readouterr().out.partition("All 4 kinds")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table


def test_exit_status(tmp_path: Path) -> None:
    assert main([str(make(tmp_path / "bad", Knobs(mutant="orphan")).path), "--no-html"]) == 1
    unknown = make(tmp_path / "unknown", Knobs(mutant="truncated"))
    assert main([str(unknown.path), "--no-html"]) == 0
    assert main([str(unknown.path), "--no-html", "--strict"]) == 1


def test_run_killed_half_way_is_readable_and_incomplete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path)
    run.history.unlink()
    (run.path / "seal.json").unlink()
    for file in run.events.glob("*.jsonl"):
        lines = [line for line in file.read_text().splitlines(keepends=True) if json.loads(line)["t"] < 1009.0]
        file.write_text("".join(lines) + '{"t": 12')  # cut off while writing
        if not lines:
            file.unlink()
    assert main([str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "This run is incomplete." in out
    assert "half written" in out
    assert "This run is incomplete." in run.report.read_text()
    trials = json.loads(run.results.read_text())["trials"]
    assert [trial["outcome"] for trial in trials] == ["unproven", "invalid", "invalid", "invalid"]
    assert trials[3]["why"] == "its turn never came"
    assert trials[0]["timeline"]["first_committed_step"] is not None


def test_run_that_never_got_to_a_step(tmp_path: Path) -> None:
    run = make(tmp_path)
    for file in run.events.glob("t*.jsonl"):
        file.unlink()
    run.history.unlink()
    (run.path / "seal.json").unlink()
    assert main([str(run.path)]) == 1  # the faults were injected, and nobody trained on
    assert "in the final weights" not in run.report.read_text()


def test_plan_without_faults_gets_the_scaling_report(tmp_path: Path) -> None:
    assert not results.is_chaos({"trials": [{"id": "t001"}, {"id": "t002", "faults": []}]})
    assert results.is_chaos(make(tmp_path).read("plan"))
