"""`python -m infra`: what it prints, its exit statuses, and the commands that work through a stack."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest

from infra import __main__ as cli
from infra import life, outputs
from tests.infra.test_backup import Memory
from tests.infra.test_life import NOW, Double, failure


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for queue and notes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROVING_GROUND_WEBHOOK", raising=False)
    return tmp_path


def opened(monkeypatch: pytest.MonkeyPatch, double: Double) -> Double:
    """Put a double in the place of every stack."""
    monkeypatch.setattr(cli, "_open", lambda _: double)
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


def test_up_queue_retry(monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened(monkeypatch, Double(failure("capacity"), failure("capacity"), failure("capacity")))
    assert cli.main(["up", "staging"]) == 1
    assert list(json.loads((home / life.QUEUE).read_text())) == ["staging"]
    assert cli.main(["retry"]) == 0
    assert json.loads((home / life.QUEUE).read_text()) == {}
    assert cli.main(["retry"]) == 0
    assert capsys.readouterr().out.endswith("no stack waits\n")
    notes = (home / cli.NOTES).read_text()
    assert "staging waits for machines" in notes
    assert "staging is up" in notes


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
    home: Path,
    hours: int,
    gone: bool,  # noqa: FBT001 - a table's column
) -> None:
    double = opened(monkeypatch, Double())
    monkeypatch.setattr(cli, "_now", lambda: NOW + dt.timedelta(hours=hours))
    assert cli.main(["reap", "dev"]) == 0
    assert (double.tried == [{"destroy": "yes"}]) == gone
    assert (home / cli.NOTES).exists() == gone


def test_backup_and_restore(monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Memory()
    monkeypatch.setattr(cli, "_container", lambda _: store)
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
