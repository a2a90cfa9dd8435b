"""`pg reports` as people and CI call it: exit statuses, one clear line, plain output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from proving_ground.bench import rundir
from proving_ground.reports.arguments import COMMANDS
from proving_ground.reports.cli import complete_run, main, parser
from proving_ground.reports.comparing.compare import MARGIN
from proving_ground.reports.recovery.forecast import NODES, REPAIR_HOURS
from tests.reports.rewritten import rewrite
from tests.reports.synthetic import RUN_ID, Knobs, make

SMALL = Knobs(nodes=(1, 2), steps=12, scalings=("weak",), bars={2: 0.9})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make(root, SMALL)
    return root


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("compare", f"{100 * MARGIN:g}"), ("forecast", f"{REPAIR_HOURS:g}"),
        ("forecast", f"{NODES[0]} to {NODES[-1]}"),
    ],
)  # fmt: skip
def test_help_says_the_defaults_that_hold(command: str, default: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert f"(default: {default})" in " ".join(capsys.readouterr().out.split())


def test_table_and_verdict(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", str(runs), "--no-html"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out  # no colour where nobody can see it
    rows = [line for line in out.splitlines() if line.strip().startswith(("1 ", "2 "))]
    assert len(rows) == 2
    assert "≥90 % ✓" in rows[1]
    assert "verdict: pass (digits ≥90 % at 2 nodes)" in out
    assert "repeat:  pg bench run --from" in out
    assert rows[0].index("reference") == rows[1].index("(9")  # columns are aligned


def test_quiet_is_the_verdict_and_where_the_report_lies(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", str(runs), "--no-html", "--quiet"]) == 0
    verdict, report = capsys.readouterr().out.splitlines()
    assert verdict == "verdict: pass (digits ≥90 % at 2 nodes)"
    assert report == "report:  not made (--no-html)"


def test_bound_stands_beside_the_efficiency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bounded = Knobs(nodes=(1, 2), steps=12, scalings=("weak",), bars={}, bound={1: 0.105, 2: 0.106})
    assert main([str(make(tmp_path, bounded).path), "--no-html"]) == 0
    begins = ("nodes", "    1", "    2")
    head, first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith(begins)]
    assert "bound" in head
    assert "99.1 %" in second  # 105 / 106
    assert "99.1 %" not in first


def test_table_fits_80_columns(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proving_ground.reports.scaling.terminal.WIDE", 80)
    assert main(["--runs", str(runs), "--no-html"]) == 0
    table = capsys.readouterr().out.partition("verdict:")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table  # nothing is cut off
    assert "    2  lost to exposed all-reduce" in table


@pytest.mark.parametrize("name", ["scaling", RUN_ID])
def test_run_by_suite_or_id(runs: Path, name: str) -> None:
    assert main([name, "--runs", str(runs), "--no-html"]) == 0


def test_unknown_run_is_the_callers_mistake(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing", "--runs", str(runs)]) == 2
    assert capsys.readouterr().err == f"reports: {runs}: unknown run 'nothing'; allowed: latest, scaling, {RUN_ID}\n"


def test_no_runs_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", str(tmp_path)]) == 2
    assert "none yet" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["plan", "provenance"])
def test_missing_document_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = make(tmp_path, SMALL)
    (run.path / f"{name}.json").unlink()
    assert main([str(run.path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_plan_without_trials_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path, SMALL)
    run.write("plan", {"cluster": {"name": "local"}})
    assert main([str(run.path)]) == 2
    assert "plan.json: lacks trials" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"warmup_steps": None}, "trials[0].warmup_steps must be type integer"),
        ({"nodes": "two"}, "trials[0].nodes must be type integer"),
        ({"repeat": -1}, "trials[0].repeat must be minimum 0"),
        ({"faults": [{"kind": "worker_kill"}]}, "trials[0].faults[0] lacks id"),
    ],
)
def test_a_plan_that_was_damaged_is_one_line_that_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], what: str
) -> None:
    run = make(tmp_path, SMALL)
    plan = run.read("plan")
    plan["trials"][0] |= change
    run.write("plan", plan)
    for words in ([str(run.path)], ["advise", str(run.path)], ["check", str(run.path), "--that", "throughput>=1"]):
        assert main(words) == 2
        assert f"plan.json: {what}" in capsys.readouterr().err


def test_failed_run_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path, Knobs(kill="t002"))
    assert main([str(run.path), "--no-html"]) == 1
    assert "verdict: fail\n  digits at 2 nodes: trial t002: n2.0 ended with exit status -9\n" in capsys.readouterr().out


def test_what_a_library_wrote_is_printed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path, Knobs(kill="t002", repeats=1))
    gloo = "n2.0 was killed: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [/127.0.0.1]:33"
    rewrite(run, lambda records: json.loads(json.dumps(records).replace("n2.0 ended with exit status -9", gloo)))
    assert main([str(run.path), "--no-html"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("[/127.0.0.1]:33") == 2, "in the table and as a reason"


def test_unknown_exits_with_0_loudly_and_with_1_when_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path, SMALL, complete=False)
    assert main([str(run.path), "--no-html"]) == 0
    assert "verdict: unknown: this run cannot tell, which is no pass\n  incomplete: " in capsys.readouterr().out
    assert main([str(run.path), "--no-html", "--strict"]) == 1


def test_unfinished_run_without_history_is_reported_as_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(tmp_path, SMALL)
    run.history.unlink()
    (run.path / "seal.json").unlink()
    harness = run.events / "harness.jsonl"
    lines = harness.read_text().splitlines(keepends=True)
    harness.write_text("".join(line for line in lines if '"run_end"' not in line) + '{"t": 12')  # cut off while writing
    assert main([str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "this run is incomplete" in out
    assert "half written" in out
    assert "This run is incomplete." in run.report.read_text()


def test_a_defect_of_the_report_is_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proving_ground.reports.scaling.results.measured", lambda *_: 1 / 0)
    assert main(["--runs", str(runs), "--no-html"]) == 1
    assert capsys.readouterr().err == (
        "reports: a defect of the report, not of the run: ZeroDivisionError: division by zero\n"
    )


def test_a_table_that_cannot_be_made_costs_only_the_table(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proving_ground.reports.scaling.terminal.show", lambda *_: 1 / 0)
    assert main(["--runs", str(runs)]) == 0
    assert "could not be made: the table: ZeroDivisionError" in capsys.readouterr().err
    assert main(["--runs", str(runs), "--strict"]) == 1
    assert (rundir.find(runs).path / "report.html").exists()


def test_help_and_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--nonsense"])
    assert "unknown option '--nonsense'; allowed: --help" in capsys.readouterr().err
    assert "exit status" in parser().format_help()


def test_completion_knows_runs_and_suites(runs: Path) -> None:
    arguments = parser().parse_args(["--runs", str(runs)])
    assert complete_run(parsed_args=arguments) == [RUN_ID, "scaling", *COMMANDS]


def test_as_a_program(runs: Path) -> None:
    command = [sys.executable, "-m", "proving_ground.reports", "--runs", str(runs), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
