"""The command line as a person types it: what each command prints, and what each mistake says."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import pytest

from proving_ground.__main__ import PROGRAMS
from proving_ground.bench import calibrate, commands, plan, rundir
from proving_ground.bench.cli import COMMANDS, left, main
from proving_ground.bench.clusters.remote.slurm import SlurmPool
from proving_ground.bench.protocols import Workload
from proving_ground.bench.spec import Suite
from proving_ground.chaos.cli import main as chaos

ROOT = Path(__file__).parent.parent.parent
OWN = """
title = "T"
nodes = [1, 2]
repeats = 2
[[case]]
name = "own"
workload = "command"
steps = 8
estimated_step_s = 0.1
batch_per_node = 8
[case.command]
argv = ["python", "-c", "print()"]
"""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("signal.signal", lambda *_: None)


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    return str(file)


def bench(runs: Path, *words: str) -> int:
    return main(["--runs", str(runs), *words])


def recorded(runs: Path, own: str) -> rundir.RunDir:
    assert bench(runs, "run", "--suite", own, "--cluster", "fake", "--no-report") == 0
    return rundir.find(runs)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The suites that plans were made of, in order: every plan begins with what it admits."""
    suites: list[str] = []
    admit = plan.admit

    def noted(suite: Suite, workloads: Mapping[str, Workload]) -> None:
        suites.append(suite.name)
        admit(suite, workloads)

    monkeypatch.setattr(plan, "admit", noted)
    return suites


def test_a_run_is_planned_once(tmp_path: Path, own: str, planned: list[str]) -> None:
    store = recorded(tmp_path, own)
    assert planned == ["own"]
    assert [it["id"] for it in store.read("plan")["trials"]] == ["t001", "t002", "t003", "t004"]


def test_a_chaos_run_is_planned_once(tmp_path: Path, planned: list[str]) -> None:
    assert chaos(["--runs", str(tmp_path), "run", "--cluster", "fake", "--suite", "smoke"]) == 0
    assert planned == ["smoke"]
    assert rundir.find(tmp_path).read("plan")["trials"][0]["faults"]


def test_what_a_calibration_decides_is_planned_as_asked_and_then_as_decided(
    tmp_path: Path, own: str, planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asked: so that the caller's mistakes are refused before a minute is spent on measuring."""
    monkeypatch.setattr(commands, "measure_host", lambda *_, **__: {"busbw_mbps": {"2": 900.0}})
    monkeypatch.setattr(commands, "takes_s", lambda *_: 1.0)
    Path(own).write_text(OWN.replace("repeats = 2", "repeats = 2\ncalibrate = true"))
    assert recorded(tmp_path, own).read("calibration")["busbw_mbps"] == {"2": 900.0}
    assert planned == ["own", "own"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert COMMANDS[command][1] in capsys.readouterr().out.replace("\n", " ").replace("  ", " ")


def test_doctor_says_what_this_machine_can_do(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(runs, "doctor") == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("namespaces", "links", "cpu shares", "disks", "gpu", "browser"))


def test_plan_starts_nothing(runs: Path, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(runs, "plan", "--suite", own, "--cluster", "fake") == 0
    out = capsys.readouterr().out
    assert "4 trials in 2 interleaved repeats" in out
    assert "n2.0: python -m proving_ground.training wrap python -c 'print()'" in out
    assert not runs.exists()


def test_plan_says_node_hours_and_what_they_cost(runs: Path, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    def hours(*words: str) -> str:
        assert bench(runs, "plan", "--suite", own, "--cluster", "fake", *words) == 0
        return capsys.readouterr().out.rsplit(" · ", 1)[1]

    assert hours().endswith(" node-hours (predicted)\n")
    taken = float(hours().split()[0])
    assert float(hours("--price-per-node-hour", "500").split()[2]) == pytest.approx(500 * taken, rel=0.01)
    assert bench(runs, "plan", "--suite", own, "--cluster", "fake", "--price-per-node-hour", "0") == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "bench: --price-per-node-hour 0: must be above 0\n")


def test_plan_counts_the_repeats_of_a_case_that_has_its_own(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN.replace("steps = 8", "steps = 8\nrepeats = 5"))
    assert bench(runs, "plan", "--suite", str(file), "--cluster", "fake") == 0
    assert "10 trials in 5 interleaved repeats" in capsys.readouterr().out


def test_a_recorded_run_is_listed(runs: Path, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = recorded(runs, own)
    capsys.readouterr()
    assert bench(runs, "list") == 0
    listed = capsys.readouterr().out
    line = next(line for line in listed.splitlines() if store.run_id in line)
    assert line.split()[:7] == [store.run_id, "own", "complete", "4", "no", "report", "yet"]


def test_list_without_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(runs, "list") == 0
    assert "start with: pg bench run" in capsys.readouterr().out


def test_a_run_can_be_done_again_from_its_directory(runs: Path, own: str) -> None:
    store = recorded(runs, own)
    assert bench(runs, "run", "--from", str(store.path), "--cluster", "fake", "--no-report") == 0
    again = rundir.find(runs)
    assert again.path != store.path
    assert again.read("plan") == store.read("plan")


def test_logs_are_merged_and_filtered(runs: Path, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = recorded(runs, own)
    (store.logs / "t001.n1.0.log").write_text("hello\n")
    (store.logs / "t002.n2.0.log").write_text("world\n")
    capsys.readouterr()
    assert bench(runs, "logs") == 0
    assert [(words[1], words[-1]) for words in map(str.split, capsys.readouterr().out.splitlines())] == [
        ("t001", "hello"), ("t002", "world"),
    ]  # fmt: skip
    assert bench(runs, "logs", "--node", "n2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["message"] == "world"
    assert bench(runs, "logs", "--trial", "t009") == 2


def test_prune_keeps_the_newest(runs: Path, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(runs, own)
    newest = recorded(runs, own)
    assert bench(runs, "prune", "--keep", "1", "--dry-run") == 0
    assert len(rundir.all_runs(runs)) == 2
    assert bench(runs, "prune", "--keep", "1") == 0
    assert [run.path for run in rundir.all_runs(runs)] == [newest.path.resolve()]
    assert "1 of 2 runs removed" in capsys.readouterr().out
    assert bench(runs, "prune") == 0
    assert "nothing to remove: 1 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--suite", "nothing"], "unknown suite 'nothing'; allowed: checkpoint, "),
        (["run", "--suite", "/no/such.toml"], "no suite '/no/such.toml'"),
        (["plan", "--suite", "chaos/suites/kill.toml"], "has faults, and bench does none: pg chaos run"),
        (["run", "--suite", "chaos/suites/kill.toml"], "has faults, and bench does none: pg chaos run"),
        (["plan", "--nodes", "0"], "--nodes '0': must be node counts from 1 to 64"),
        (["plan", "--nodes", "3,x"], "--nodes '3,x': must be node counts from 1 to 64"),
        (["plan", "--nodes", "4,2,2"], "must be 1 or more node counts, ascending"),
        (["plan", "--repeats", "0"], "repeats = 0: must be 1 to 1000"),
        (["plan", "--link-mbps", "-1"], "link_mbps = -1.0: must be 1 to 400000"),
        (["plan", "--case", "x"], "--case: unknown case 'x'; allowed: digits, resnet50"),
        (["run", "--resume", "x"], "no run 'x' under"),
        (["run", "--from", "x"], "no run 'x' under"),
        (["logs"], "no run 'latest' under"),
        (["logs", "x" * 5000], "no run 'xxx"),  # longer than any file's name
        (["prune", "--keep", "0"], "--keep: 0; allowed: 1 or more"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    runs: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(runs, *words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not runs.exists()


@pytest.mark.parametrize("words", [[], ["rnu"], ["run", "--repeats", "two"]])
def test_what_argparse_refuses_is_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2


def test_words_that_fill_a_screen_are_shown_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "x" * 5000])
    said = capsys.readouterr().err
    assert "too many words: xxx" in said
    assert len(said) < 150


def shell(runs: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "proving_ground.bench", "--runs", str(runs), *words]


def test_the_whole_way_from_suite_to_report(runs: Path, own: str) -> None:
    done = subprocess.run(
        shell(runs, "run", "--suite", own, "--cluster", "fake"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "report:" in done.stdout
    assert rundir.find(runs).report.exists()
    assert rundir.find(runs).read("results")["suite"] == "own"


def test_a_full_disk_is_one_line(own: str) -> None:
    done = subprocess.run(
        shell(Path("/dev/full"), "run", "--suite", own, "--cluster", "fake"),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("bench: /dev/full: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("lines", [0, 1])
@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_a_reader_that_leaves_ends_no_run(runs: Path, own: str, lines: int, both: bool) -> None:  # noqa: FBT001
    """`| true`, `| head -1` and `2>&1 | head -1`: as with a reader, the verdict is the status and all is written."""
    read, write = os.pipe()
    process = subprocess.Popen(
        shell(runs, "run", "--suite", own, "--cluster", "fake"), cwd=ROOT, text=True, stdout=write,
        stderr=write if both else subprocess.PIPE,
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read) as reader:
        assert all(reader.readline() for _ in range(lines))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Traceback" not in (said or "")
    run = rundir.find(runs)
    assert run.read("seal")["complete"]
    assert run.report.exists()


def wait_for(condition: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not condition.exists() and process.poll() is None:
        assert time.monotonic() < end, f"{condition} did not come"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_how_to_go_on(runs: Path, tmp_path: Path, number: signal.Signals) -> None:
    suite = tmp_path / "long.toml"
    suite.write_text(OWN.replace("print()", "import time; time.sleep(60)"))
    command = shell(runs, "run", "--suite", str(suite), "--cluster", "local", "--no-report")
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environ)
    wait_for(runs / "long" / "latest" / "logs" / "t001.n1.0.log", process)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said.splitlines()[-1].endswith(f"pg bench run --resume latest --runs {runs}")
    assert "Traceback" not in said
    assert not rundir.find(runs).read("seal")["complete"]


def test_an_interrupted_calibration_is_not_what_can_be_resumed(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        store = rundir.create(runs, calibrate.NAME)
        store.write("spec", {})
        raise KeyboardInterrupt

    monkeypatch.setattr("proving_ground.bench.commands.measure_host", interrupted)
    options = ["--runs", str(runs), "run", "--suite", "scaling", "--cluster", "local"]
    assert main(options) == 130
    said = capsys.readouterr().err
    assert "still calibrating" in said
    assert "--resume" not in said
    assert main([*options, "--resume", "latest"]) == 2
    assert "is a calibration, which is made anew" in capsys.readouterr().err
    assert left(Namespace(runs=runs, resume="scaling")).endswith(f"run --resume scaling --runs {runs}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_says_its_version(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = "__main__" if program in ("infra", "training") else "cli"
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"proving_ground.{program}.{place}").main(["--version"])
    assert end.value.code == 0
    assert re.fullmatch(r"proving-ground \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_where_runs_lie_may_stand_before_the_command_and_after_it(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--runs", str(runs), "list"], ["list", "--runs", str(runs)]):
        assert main(words) == 0
        assert str(runs) in capsys.readouterr().out


def test_a_misspelt_cluster_is_not_cleaned_as_if_it_were_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", "--cluster", "fke", "--dry-run"]) == 2
    said = capsys.readouterr()
    assert (said.out, "unknown cluster 'fke'" in said.err, "did you mean 'fake'?" in said.err) == ("", True, True)


def test_what_clean_lets_be_elsewhere_is_not_among_what_it_removes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = ["left: job 8", "in use by here/1.2, let be: job 9", "not asked: e3: no answer"]
    monkeypatch.setattr(SlurmPool, "clean", lambda _, **_options: lines)
    words = ("clean", "--cluster", "slurm:main", "--dry-run")
    assert bench(tmp_path, *words, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert [document[key] for key in ("removed", "in_use", "not_asked", "dry_run")] == [*([it] for it in lines), True]
    assert bench(tmp_path, *words) == 1
    assert capsys.readouterr().out.splitlines() == [
        *lines, "1 thing would be removed; 1 machine could not be asked: run it again",
    ]  # fmt: skip
