"""`pg infra`: what it prints, its exit statuses, and the commands that work through a stack."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from pathlib import Path

import pytest

from proving_ground.infra import __main__ as cli
from proving_ground.infra import commands, config, life, operate, outputs
from tests.infra.test_backup import Memory
from tests.infra.test_life import NOW, Double, failure
from tests.interrupts import guarded, interrupted


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROVING_GROUND_WEBHOOK", raising=False)
    return tmp_path


def opened(monkeypatch: pytest.MonkeyPatch, double: Double) -> Double:
    """Put a double in the place of every stack."""
    monkeypatch.setattr(operate, "open_stack", lambda _: double)
    return double


def test_check_passes_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check"]) == 0
    assert "prod: fine; 4 pools, at most 56 nodes" in capsys.readouterr().out


def test_cost_says_source_and_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cost", "dev", "--hours", "8"]) == 0
    out = capsys.readouterr().out
    assert "dev: $0.77 to $8.18 for 8 h of machines (predicted)" in out
    assert "assumed" in out
    assert "source: catalogs" in out
    assert "0.526    0.063" in out  # on demand and spot


@pytest.mark.parametrize("hours", ["0", "-3", "nan", "inf", "two"])
def test_hours_must_be_some(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["cost", "dev", "--hours", hours])
    assert left.value.code == 2
    assert f"{hours}: must be a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["x" * 9000, "--" + "x" * 9000])
def test_long_words_make_no_long_lines(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main([word])
    with pytest.raises(SystemExit, match="2") if word.startswith("--") else contextlib.nullcontext():
        assert cli.main(["check", "local", word]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["infra", "infra"]
    assert max(map(len, lines)) <= 360


@pytest.mark.parametrize("argv", [["cost", "qa"], ["check", "qa"], ["up", "qa"], ["cost", "dev", "--prices", "no"]])
def test_the_callers_mistakes_are_one_line_and_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_the_pulumi_command(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(home))
    for command in ("preview", "up", "down", "reap"):
        assert cli.main([command, "local"]) == 2
        assert "pulumi: the command is not on PATH" in capsys.readouterr().err


def test_up_queue_retry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened(monkeypatch, Double(failure("capacity"), failure("capacity"), failure("capacity")))
    assert cli.main(["up", "staging"]) == 1
    assert list(json.loads(operate.QUEUE.read_text())) == ["staging"]
    assert cli.main(["retry"]) == 0
    assert json.loads(operate.QUEUE.read_text()) == {}
    assert cli.main(["retry"]) == 0
    assert capsys.readouterr().out.endswith("no stack waits\n")
    notes = operate.NOTES.read_text()
    assert "staging waits for machines" in notes
    assert "staging is up" in notes


class Clock:
    """The time, which passes only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = NOW
        monkeypatch.setattr(operate, "now", lambda: self.time)
        monkeypatch.setattr("time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.time += dt.timedelta(seconds=seconds)


def test_up_tries_again_until_there_is_a_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Clock(monkeypatch)
    double = opened(monkeypatch, Double(*[failure("capacity")] * 4))  # two an attempt: the pool has two sizes
    assert cli.main(["up", "staging", "--wait", "2"]) == 0
    out = capsys.readouterr().out
    assert "staging: 1 of 1 that wait; attempt 2 at 00:15 UTC; 2.0 h left" in out
    assert out.endswith("staging: up\n")
    assert "staging is up, after 3 attempts" in operate.NOTES.read_text()
    assert (double.waits, life.queued(operate.QUEUE)) == (None, {})


def test_up_waits_no_longer_than_it_was_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    double = opened(monkeypatch, Double(*[failure("capacity")] * 60))
    assert cli.main(["up", "staging", "--wait", "0.6"]) == 1
    assert clock.time - NOW == dt.timedelta(hours=0.6)
    assert capsys.readouterr().out.endswith("staging: queued\n")
    assert "staging found no machine within 0.6 h, and stays queued, after 4 attempts" in operate.NOTES.read_text()
    assert str(double.waits).startswith("pool a100, ")
    assert life.queued(operate.QUEUE)["staging"]["since"] == NOW.isoformat(), "since the first attempt"


def test_retry_finds_a_stack_that_another_machine_queued(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the schedule does, in a fresh checkout."""
    double = opened(monkeypatch, Double())
    double.waits = "pool a100: capacity"
    assert not operate.QUEUE.exists()
    assert cli.main(["retry", "staging"]) == 0
    assert "staging: waits for machines: pool a100: capacity" in capsys.readouterr().out
    assert len(double.tried) == 1
    assert not double.waits


def test_what_is_wrong_with_one_stack_keeps_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Double):
        def skus(self) -> dict[str, str]:
            raise life.StackError("error: incorrect passphrase")

    staging = Double()
    monkeypatch.setattr(operate, "open_stack", lambda name: {"dev": Broken(), "staging": staging}[name])
    for name in ("gone", "dev", "staging"):
        life.enqueue(name, life.Result("queued", {}, ("why",)), NOW, operate.QUEUE)
    assert cli.main(["retry"]) == 2
    out, err = capsys.readouterr()
    assert err.splitlines()[0].startswith("infra: gone: stack 'gone': there is no Pulumi.gone.yaml")
    assert err.splitlines()[1].startswith("infra: dev: passphrase: incorrect passphrase")
    assert len(err.splitlines()) == 2
    assert "staging: waits for machines" in out
    assert list(life.queued(operate.QUEUE)) == ["gone", "dev"]


def test_the_queue_is_the_projects_wherever_a_command_is_started() -> None:
    assert (config.ROOT / ".proving-ground" / "queue.json") == life.QUEUE


def test_without_a_place_for_the_note_the_stack_is_still_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Mute(Double):
        def set_waiting(self, reason: str | None) -> None:
            raise life.StackError(f"error: no tags here {reason}")

    opened(monkeypatch, Mute())
    assert cli.main(["up", "dev"]) == 0
    assert capsys.readouterr().err == "infra: dev: noted on this machine only: no tags here None\n"


@pytest.mark.parametrize(("hours", "gone"), [(5, False), (7, True)])
def test_reap_opens_a_lock_that_no_command_holds_so_long(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hours: int,
    gone: bool,  # noqa: FBT001 - a table's column
) -> None:
    """Whatever machine it was: what is forgotten costs money."""
    until = NOW + dt.timedelta(hours=90)

    class Locked(Double):
        def destroy(self, *, cluster_gone: bool = False) -> None:
            if {"mend": "force"} not in self.tried:
                since = (until - dt.timedelta(hours=hours)).isoformat()
                raise life.StackError(f"error: the stack is currently locked by 1\n created by i@ci (pid 4) at {since}")
            super().destroy(cluster_gone=cluster_gone)

    double = opened(monkeypatch, Locked())
    monkeypatch.setattr(operate, "now", lambda: until)
    assert cli.main(["reap", "dev"]) == (0 if gone else 1)
    assert double.tried == ([{"mend": "force"}, {"destroy": "yes"}] if gone else [])
    assert ("infra: locked: " in capsys.readouterr().err) != gone


BEGIN = (
    guarded("pthread_sigmask")
    + """
sys.argv = ["infra", "down", "local"]
runpy.run_module("infra", run_name="__main__")
"""
)


@pytest.mark.parametrize("after_s", [round(0.02 * number, 2) for number in range(1, 16)])
def test_a_ctrl_c_while_it_starts_is_one_line(after_s: float, tmp_path: Path) -> None:
    """From the first line of our own: what Python itself does before, nobody here can catch."""
    (tmp_path / "pulumi").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "pulumi").chmod(0o755)
    status, err = interrupted(BEGIN, after_s, PATH=str(tmp_path))
    assert err == "infra: interrupted\n"
    assert status == 130


def test_what_the_provider_says_is_one_line_with_advice(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Locked(Double):
        def destroy(self, *, cluster_gone: bool = False) -> None:
            del cluster_gone
            raise life.StackError("error: the stack is currently locked by 1 lock(s)")

    opened(monkeypatch, Locked())
    assert cli.main(["down", "dev"]) == 1
    assert "locked" in capsys.readouterr().err
    assert home.exists()


def test_a_variable_that_is_not_yaml_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROVING_GROUND_INFRA__POOLS", "[")
    assert cli.main(["check", "local"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("infra: PROVING_GROUND_INFRA__POOLS: '[' is not YAML")
    assert err.count("\n") == 1


def test_outputs_of_a_stack_that_is_not_there_are_one_line(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "pulumi").write_text("#!/bin/sh\necho \"error: no stack named 'dev' found\" >&2\nexit 255\n")
    (home / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", str(home))
    assert cli.main(["outputs", "dev"]) == 2
    assert capsys.readouterr().err == "infra: stack dev: no stack named 'dev' found\n"


def test_outputs_are_told_without_secrets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"claim": "c", "rendezvous_port": 1, "pools": [], "prometheus": "p", "loki": "l"}
    names = {"namespace": "n", "service_account": "s", "headless_service": "h", "environment": "dev"}
    made = outputs.read({"schema": 1, "kubeconfig": "planted", **more, **names})
    monkeypatch.setattr(outputs, "load", lambda _: made)
    assert cli.main(["outputs", "dev"]) == 0
    out = capsys.readouterr().out
    assert 'namespace: "n"' in out
    assert "ray_client: null" in out
    assert "planted" not in out


@pytest.mark.parametrize("error", [life.InterruptedStackError("x"), KeyboardInterrupt()])
def test_an_interruption_is_one_line_and_status_130(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    class Stopped(Double):
        def up(self) -> None:
            raise error

    assert home.exists()
    opened(monkeypatch, Stopped())
    assert cli.main(["up", "dev"]) == 130
    assert capsys.readouterr().err.startswith("infra: interrupted")


def test_mend_and_a_cluster_that_is_gone(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    double = opened(monkeypatch, Double())
    assert cli.main(["mend", "dev"]) == 0
    assert cli.main(["down", "dev", "--cluster-gone"]) == 0
    assert double.tried == [{"mend": "yes"}, {"destroy": "gone"}]
    assert home.exists()


@pytest.mark.parametrize(("hours", "gone"), [(11, False), (13, True)])
def test_reap_takes_down_what_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
    hours: int,
    gone: bool,  # noqa: FBT001 - a table's column
) -> None:
    double = opened(monkeypatch, Double())
    monkeypatch.setattr(operate, "now", lambda: NOW + dt.timedelta(hours=hours))
    assert cli.main(["reap", "dev"]) == 0
    assert (double.tried == [{"destroy": "yes"}]) == gone
    assert operate.NOTES.exists() == gone


def test_backup_and_restore(monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Memory()
    monkeypatch.setattr(commands, "_container", lambda _: store)
    (home / "run").mkdir()
    (home / "run" / "checkpoint").write_text("weights")
    there = ["--name", "prod", "--container", "backups"]
    assert cli.main(["backup", "run", *there]) == 0
    assert cli.main(["restore", "back", *there]) == 0
    assert (home / "back" / "checkpoint").read_text() == "weights"
    assert "1 files" in capsys.readouterr().out


def test_a_container_that_is_none(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    assert cli.main(["restore", str(home / "back"), "--name", "prod", "--container", "backups"]) == 2
    assert "backups: not a URL" in capsys.readouterr().err
