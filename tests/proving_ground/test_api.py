"""The Python API: what it says is what results.json and the event files say."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import proving_ground
from proving_ground.bench.rundir import RunDirError
from proving_ground.reports.cli import main
from proving_ground.reports.recovery import results as recovery
from proving_ground.reports.scaling import results
from tests.reports.synthetic import Knobs, make

ROOT = Path(__file__).parent.parent.parent


def test_figures_and_verdicts_are_those_of_results_json(bench_run: proving_ground.Run) -> None:
    document = results.analyse(bench_run._run).results
    figures = bench_run.figures
    assert len(figures) == len(document["figures"])
    for row, it in zip(figures.to_dict("records"), document["figures"], strict=True):
        assert (row["name"], row["median"], row["nodes"]) == (it["name"], it["median"], it["where"]["nodes"])
        assert it["ci95"] is None or [row["low"], row["high"]] == it["ci95"]
    assert bench_run.verdicts["verdict"].tolist() == [it["verdict"] for it in document["verdicts"]]


def test_of_a_benchmark_trials_are_planned_ones_and_steps_are_recorded(bench_run: proving_ground.Run) -> None:
    plan = bench_run._run.read("plan")["trials"]
    assert bench_run.trials["id"].tolist() == [it["id"] for it in plan]
    first = bench_run.steps.query("trial == 't001'")
    assert len(first) == plan[0]["steps"] * plan[0]["nodes"]
    assert {"node", "slot", "t", "step", "samples"} <= set(first.columns)


def test_of_a_chaos_run_trials_are_faults_with_their_moments(chaos_run: proving_ground.Run) -> None:
    rows = recovery.analyse(chaos_run._run).results["trials"]
    assert chaos_run.trials["fault"].tolist() == [it["fault"] for it in rows]
    assert chaos_run.trials["inject"].tolist() == [it["timeline"]["inject"] for it in rows]


@pytest.mark.parametrize(("knobs", "verdict"), [({}, "pass"), ({"kill": "t002"}, "fail")])
def test_the_verdict_is_that_of_all_checks(tmp_path: Path, knobs: dict[str, str], verdict: str) -> None:
    made = make(tmp_path, Knobs(nodes=(1, 2), steps=12, scalings=("weak",), bars={}, **knobs))  # type: ignore[arg-type]
    assert proving_ground.open(made.path).verdict == verdict
    assert proving_ground.open(made.path).check("throughput >= 1")[0].verdict == {"pass": "pass"}.get(
        verdict, "unknown"
    )


def test_nothing_is_written(tmp_path: Path) -> None:
    made = make(tmp_path, Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    before = sorted(made.path.rglob("*"))
    opened = proving_ground.open(made.path)
    assert len(opened.figures) > 0
    assert sorted(made.path.rglob("*")) == before


def test_a_notebook_shows_verdict_and_figures_and_no_markup_of_others(tmp_path: Path) -> None:
    made = make(tmp_path, Knobs(nodes=(1, 2), steps=12, scalings=("weak",), kill="t002"))
    events = made.events / "harness.jsonl"
    events.write_text(events.read_text().replace("ended with exit status -9", "<script>alert(1)</script>"))
    shown = proving_ground.open(made.path)._repr_html_()
    assert "throughput" in shown
    assert "<script>" not in shown


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="no run 'latest' under"):
        proving_ground.open(runs=tmp_path)
    with pytest.raises(ValueError, match="did you mean 'smoke'"):
        proving_ground.run("smok", cluster="fake", runs=tmp_path)
    with pytest.raises(ValueError, match="did you mean '--nodes'"):
        proving_ground.run("smoke", noeds="1,2", runs=tmp_path)
    with pytest.raises(AttributeError, match="has no attribute 'opn'; it has Run, launch, open, run"):
        proving_ground.opn  # noqa: B018 # type: ignore[attr-defined]


def test_what_the_page_says_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "proving_ground/README.md").read_text()
    [block] = [it for it in re.findall(r"(?:^    .*\n|^\n)+", text, re.MULTILINE) if "import proving_ground" in it]
    exec(textwrap.dedent(block).replace('"runs"', f'"{tmp_path}/runs"'), {})  # noqa: S102 - our own page
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "pass"
    assert "digits" in said[2]
    assert said[3] == "pass"


def test_it_says_what_the_command_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = proving_ground.open("scaling", folder / "runs").check("throughput >= 1")
    main(["check", "scaling", "--that", "throughput >= 1", "--runs", str(folder / "runs")])
    assert [it.why in capsys.readouterr().out for it in found[:1]] == [True]


def test_importing_it_is_cheap() -> None:
    code = "import proving_ground, sys; sys.exit(any(it in sys.modules for it in ('pandas', 'torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_training_is_launched_from_python(tmp_path: Path) -> None:
    config = {"model": "tests.training.own_task:Line", "steps": 6, "global_batch": 16, "lr": 0.01, "eval_every": 3}
    made = proving_ground.launch(config, nodes=2, ranks_per_node=2, cluster="local", runs=tmp_path)
    assert made.verdicts.set_index("check")["verdict"]["completed"] == "pass"
    assert sorted(made.steps["step"]) == sorted(list(range(1, 7)) * 4)
    assert made.evaluations.query("step == 6")["value"].nunique() == 1, "all ranks have one model"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "config needs steps"),
        ({"steps": 3, "model": "dgits"}, "did you mean 'digits'"),
        ({"steps": 3, "modle": 1}, "unknown key 'modle'"),
        ({"steps": 3, "lr": float("nan")}, "launch: lr = nan"),
        ({"steps": 3, "lr": print}, "launch: lr = <built-in"),
    ],
)
def test_a_launch_that_makes_no_sense_is_one_line(config: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words) as error:
        proving_ground.launch(config, cluster="fake", runs=tmp_path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
