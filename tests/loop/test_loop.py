"""The loop as a process: to its end, killed, interrupted, refused; real `up`, `down` and time keeper, no cluster."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving_ground.infra.config import ROOT
from proving_ground.loop import cli, keeper, ledger, money, steps, work
from proving_ground.loop.ledger import Asked, Ledger, Spent
from proving_ground.loop.steps import STEPS
from tests.loop.stage import Stage, end_all, staged, step_runs, wait

KILLS, SEED = 4, 27
HOUR = ("--hours", "1")
pytestmark = pytest.mark.skipif(shutil.which("pulumi", path="/usr/bin:/bin") is not None, reason="a real pulumi")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = staged(tmp_path)
    yield made
    end_all(made)


def test_from_nothing_to_a_report_and_back(stage: Stage) -> None:
    status, out, err = stage.loop("local", *HOUR)
    assert (status, err) == (0, "")
    state = stage.ledger.state()
    assert list(state.done) == list(STEPS)
    assert state.ended
    assert state.ended["why"] == "done"
    assert "backup  left out: the stack has no object storage" in out
    assert [it[0] for it in stage.asked() if it[0] in ("apply", "delete")] == ["apply", "apply", "delete", "delete"]
    assert not stage.there
    stage.await_down()
    assert "no Pulumi CLI here: the same objects are applied by kubectl" in (stage.ledger.logs / "up.log").read_text()
    assert stage.loop("status") == (0, "no loop is under way\n", "")


def test_a_check_that_fails_is_a_finding_and_stops_nothing(stage: Stage) -> None:
    status, out, _ = stage.loop("local", *HOUR, chaos_STATUS="1")
    assert status == 1
    assert "chaos   a check failed" in out
    assert stage.ledger.state().findings == ["chaos"]
    assert not stage.there


@pytest.mark.parametrize(("how", "status"), [({"chaos_STATUS": "2"}, 2), ({"chaos_STATUS": "1"}, 1)])
def test_a_step_that_fails_stops_it_and_the_stack_goes_by_its_time(
    how: dict[str, str], status: int, stage: Stage
) -> None:
    """With status 1 it fails where nothing whole is recorded; bench's run stands for one that was cut off."""
    end, _, err = stage.loop("local", *HOUR, bench_RECORDS="no", chaos_RECORDS="no", **how)
    assert end == 1
    assert err.startswith(f"loop: chaos failed with status {status}: chaos says this (")
    assert f"to go on: pg loop local --runs {stage.runs}; to take it down now: pg loop down" in err
    assert err.count("\n") == 1
    assert stage.there
    stage.expire()
    stage.await_down()
    assert not stage.there
    assert "its 1 h are over" in stage.loop("status", "local")[1]


def test_after_a_failure_it_goes_on_where_it_stopped(stage: Stage) -> None:
    assert stage.loop("local", *HOUR, bench_STATUS="2")[0] == 1
    status, out, _ = stage.loop("local")
    assert status == 0
    assert "going on with the loop of" in out
    done = [it["step"] for it in stage.ledger.records() if it["event"] == "step_ended"]
    assert done == ["check", "cost", "up", "bench", *list(STEPS)[3:]]


def test_where_up_fails_nothing_is_measured(stage: Stage) -> None:
    stage.fails("apply")
    status, _, err = stage.loop("local", *HOUR)
    assert status == 1
    assert "up failed with status" in err
    assert "local may be half up since" in err


def test_a_kill_at_any_moment_leaves_nothing_up_after_its_time(tmp_path: Path) -> None:
    """All at once, each at a moment of its own; the last one is not killed before `up` is under way."""
    chance = random.Random(SEED)  # noqa: S311 - no secret
    stages = [staged(tmp_path / str(number)) for number in range(KILLS)]
    loops = [it.begin("local", *HOUR, bench_S="30") for it in stages]
    try:
        for number in range(KILLS):
            if number == KILLS - 1:
                wait(lambda: step_runs(stages[-1], "bench"))
                assert stages[-1].there
            time.sleep(chance.uniform(0.0, 0.6))
            os.kill(loops[number].pid, signal.SIGKILL)
        for it in (one for one in stages if ledger.latest(one.runs, "local")):
            it.expire()
            it.await_down()
            assert not it.there
            assert not step_runs(it, "bench")
        ended = stages[-1].ledger.state().ended
        assert ended
        assert ended["why"] == "taken down: its 1 h are over"
    finally:
        for process in loops:
            process.communicate()
        for it in stages:
            end_all(it)


def test_without_the_keeper_it_would_stay_up_and_status_says_so(stage: Stage) -> None:
    """The mutant: killed together with the process that keeps the time."""
    process = stage.begin("local", *HOUR, bench_S="30")
    wait(lambda: step_runs(stage, "bench"))
    for name in (ledger.KEEPER, ledger.STEP):
        os.kill(ledger.holder(stage.ledger.folder / name) or 0, signal.SIGKILL)
    process.communicate()
    stage.expire()
    time.sleep(3)
    assert stage.there
    status, out, _ = stage.loop("status")
    assert status == 1
    assert "NOBODY takes it down: pg loop down local" in out
    assert stage.loop("local")[0] == 1, "its time is over: it is taken down now"
    stage.await_down()
    assert not stage.there


def test_it_is_taken_down_though_its_folder_is_gone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{stage.folder / 'bin'}:/usr/bin:/bin")

    def gone(*_: object) -> Spent:
        shutil.rmtree(stage.runs)
        return Spent()

    monkeypatch.setattr(keeper, "metered", gone)
    made = ledger.create(stage.runs, Asked("local"))
    made.note("step_begun", step="up")
    made.note("kept", deadline=time.time())
    (stage.folder / "bin" / "there").write_text("[]")
    keeper.watch(made)
    assert not stage.runs.exists()
    assert not stage.there


@pytest.mark.parametrize("step", ["up", "bench"])
def test_an_interrupt_ends_the_step_and_says_what_is_up(step: str, stage: Stage) -> None:
    process = stage.begin("local", *HOUR, bench_S="30")
    wait(lambda: step_runs(stage, step) and ledger.holder(stage.ledger.folder / ledger.STEP) != process.pid)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith(f"loop: interrupted in {step}; local {'may be half' if step == 'up' else 'is'} up since ")
    assert "to go on: pg loop local" in err
    assert ledger.holder(stage.ledger.folder / ledger.STEP) is None
    assert stage.loop("local", "--hours", "3")[::2] == (2, stage_says(stage))
    status, out, _ = stage.loop("down", "local")
    assert (status, stage.there) == (0, False)
    assert "local: down (taken down by hand)" in out
    stage.await_down()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_up_that_is_ended_leaves_no_kubectl_at_work(number: signal.Signals, stage: Stage) -> None:
    """What ends a step sends a SIGTERM; the end of a terminal is a SIGHUP."""
    path = f"{stage.folder / 'bin'}:/usr/bin:/bin"
    process = subprocess.Popen(
        [sys.executable, "-m", "proving_ground.infra", "up", "local"], cwd=ROOT, text=True, stderr=subprocess.PIPE,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(stage.folder), "apply_S": "600"}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wait(lambda: stage.there)
    applies = int((stage.folder / "bin" / "applying").read_text())
    process.send_signal(number)
    assert process.communicate()[1] == "infra: interrupted\n"
    assert process.returncode == 130
    wait(lambda: not Path(f"/proc/{applies}").exists())
    assert not (stage.folder / "bin" / "applied").exists()


def stage_says(stage: Stage) -> str:
    """The refusal of other hours."""
    at = time.strftime("%H:%M:%S", time.localtime(stage.ledger.state().begun))
    begun = f"the loop of {at} was begun with 1.0"
    ends = f"pg loop down local --runs {stage.runs} ends it"
    return f"loop: --hours 3.0: {begun}; without it, it goes on; {ends}\n"


def test_two_loops_on_one_stack_refuse_each_other_and_one_goes_on_after_a_kill(stage: Stage) -> None:
    process = stage.begin("local", *HOUR, bench_S="30")
    wait(lambda: step_runs(stage, "bench"))
    for words in (("local",), ("down", "local")):
        status, _, err = stage.loop(*words)
        assert status == 2
        assert f"process {process.pid}" in err
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    status, out, _ = stage.loop("local")
    assert status == 0
    assert "bench of an earlier call still runs, process" in out
    assert not stage.there


def test_status_is_one_line_and_a_document(stage: Stage) -> None:
    assert stage.loop("local", *HOUR, chaos_STATUS="2")[0] == 1
    status, out, _ = stage.loop("status")
    assert status == 0
    assert out.startswith("local: stopped before chaos (step 5 of 8), up since ")
    assert out.count("\n") == 1
    document = json.loads(stage.loop("status", "--json")[1])
    assert (document["schema"], document["loops"][0]["next_step"]) == ("proving-ground/loop-status/1", "chaos")
    assert stage.loop("down", "local")[0] == 0
    stage.fails("get")
    assert stage.loop("down", "local")[0] == 2, "there is none any more"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dvv"], "did you mean 'dev'?"),
        (["dev", "--hours", "0"], "must be a number above 0"),
        (["dev", "--budget", "x"], "must be a number above 0"),
        (["dev", "--budget", "0.1"], "--budget 0.1: dev costs $0.19 at least for 2 h"),
        (["local", "--pool", "x"], "unknown pool 'x'; allowed: cpu"),
        (["local", "--bench", "smok"], "did you mean 'smoke'?"),
        (["local", "--chaos", "smok"], "did you mean 'smoke'?"),
        (["local", "--hors", "1"], "did you mean '--hours'?"),
        (["local", "--nodes", "2,x"], "--nodes '2,x': must be node counts"),
        (["local", "--options", "emulatd=true"], "did you mean 'emulated'?"),
        (["status", "dvv"], "did you mean 'dev'?"),
        (["down", "dev"], "no loop of dev is under way"),
    ],
)
def test_a_mistake_is_one_line_and_begins_nothing(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        raise SystemExit(cli.main([*words, "--runs", str(tmp_path)]))
    assert left.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("loops/*/latest"))


@pytest.mark.parametrize(
    ("script", "status", "says"),
    [
        ("echo localhost:8080 >&2; exit 1", 2, "no kubeconfig: set KUBECONFIG"),
        ("echo error: You must be logged in to the server '(Unauthorized)' >&2; exit 1", 1, "loop: cluster rights: "),
        ("", 2, "pulumi: the command is not on PATH"),
    ],
)
def test_without_a_cluster_nothing_begins(script: str, status: int, says: str, stage: Stage) -> None:
    program = stage.folder / "bin" / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    if not script:
        program.unlink()
    end, out, err = stage.loop("local", *HOUR, PATH=str(stage.folder / "bin"))
    assert (end, out) == (status, "")
    assert says in err
    assert err.count("\n") == 1
    assert ledger.latest(stage.runs, "local") is None, "and so nobody keeps its time"


def test_all_of_it_works_on_the_cluster_that_was_the_current_one_at_first(stage: Stage) -> None:
    """Also where somebody chooses another context meanwhile, or types `down` in another terminal."""
    context = stage.folder / "bin" / "context"
    context.write_text("mine\n")
    assert stage.loop("local", *HOUR, chaos_STATUS="2")[0] == 1
    context.write_text("production\n")
    assert stage.loop("down", "local", KUBECONFIG="/elsewhere")[0] == 0
    asked = [it for it in stage.asked() if it[0] != "config"]
    assert {tuple(it[:2]) for it in asked} == {("--context", "mine")}
    assert [it[2] for it in asked if it[2] in ("apply", "delete")] == ["apply", "apply", "delete", "delete"]
    assert not stage.there
    stage.await_down()


@pytest.mark.parametrize("how", [{"chaos_SEAL": '{"complete": false}'}, {"chaos_RECORDS": "no"}])
def test_a_chaos_run_that_is_not_whole_found_nothing(how: dict[str, str], stage: Stage) -> None:
    """It failed or was interrupted; bench's run before it is whole."""
    status, _, err = stage.loop("local", *HOUR, chaos_STATUS="1", **how)
    assert status == 1
    assert err.startswith("loop: chaos failed with status 1: chaos says this (")
    assert "chaos" not in stage.ledger.state().done


def test_a_bench_that_was_sealed_unfinished_is_resumed(tmp_path: Path) -> None:
    made = ledger.create(tmp_path, Asked("local"))
    run = made.runs / "tiny" / "20260101T000000Z-0000"
    run.mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    for seal, unfinished in (('{"complete": false}', True), ('{"complete": true}', False), ("[]", True)):
        (run / "seal.json").write_text(seal)
        assert steps.known(made, Asked("local"), None, None).unfinished is unfinished


def test_every_report_is_made_though_the_first_has_a_finding(tmp_path: Path) -> None:
    made = ledger.create(tmp_path, Asked("local"))
    ends = [[sys.executable, "-c", f"print({status}); raise SystemExit({status})"] for status in (1, 0, 1)]
    assert work.do(made, "report", ends, "loop") == 1
    said = (made.logs / "report.log").read_text().splitlines()
    assert [line for line in said if not line.startswith("$")] == ["1", "0", "1"]
    assert made.state().done["report"]["well"]
    assert work.do(made, "chaos", ends, "loop") == 1
    assert len((made.logs / "chaos.log").read_text().splitlines()) == 2


def test_what_was_spent_survives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged, or on a full disk: the process that keeps the time knows."""
    made = ledger.create(tmp_path, Asked("dev", budget_usd=5.0))
    made.note("step_begun", step="up")
    taken: list[str] = []

    def read(_: Asked, before: Spent, now: float) -> Spent:
        (made.folder / "meter.json").write_text("half a li")
        return Spent(before.usd + 3.0, 0.0, now)

    def save(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(money, "read", read)
    monkeypatch.setattr(Ledger, "save", save)
    monkeypatch.setattr(keeper, "READ_S", 0.0)
    monkeypatch.setattr(keeper, "take_down", lambda _it, _state, why: taken.append(why))
    keeper.watch(made)
    assert taken == ["$6.00 are spent, and its budget is $5.00"]


def test_who_only_looks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.lock"
    file.touch()
    with file.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert ledger.holder(file) is None
        monkeypatch.setattr("proving_ground.loop.ledger.time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        with ledger.held(file):
            assert ledger.holder(file) == os.getpid()
            with pytest.raises(ledger.HeldError, match=str(os.getpid())), ledger.held(file):
                pass


def test_the_plan_of_a_cloud_has_its_prices_and_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["python", "-m", "proving_ground.loop", "dev", "--hours", "2", "--budget", "50", "--dry-run",
         "--runs", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": f"{PYTHON}:/usr/bin:/bin"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert list(dict.fromkeys(line.split()[0] for line in lines[:-1])) == list(STEPS)
    priced = [line for line in lines if "--price-per-node-hour 0.0" in line]
    assert [line.split()[0] for line in priced] == ["bench", "report"]
    assert lines[-1] == "dev: up for 2 h at most: $0.19 to $2.05, at most $50.00 (predicted)"
    assert list(tmp_path.iterdir()) == []


PYTHON = str(Path(sys.executable).parent)
