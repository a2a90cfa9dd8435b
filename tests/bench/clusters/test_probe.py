"""What the machine is said to allow, and by whom it is asked."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from proving_ground.bench import doctor
from proving_ground.bench.agent import kernel, machine
from proving_ground.bench.clusters.local import probe, userns
from proving_ground.bench.clusters.local.handles import interrupts_later
from proving_ground.bench.clusters.local.probe import PROBES, tried


def test_every_probe_is_answered_in_words() -> None:
    found = probe.probe()
    assert [ability.name for ability in found] == list(PROBES)
    assert all(ability.how for ability in found)


@pytest.mark.root
def test_root_can_do_all_that_the_cluster_needs() -> None:
    found = {ability.name: ability.yes for ability in probe.probe()}
    assert found["namespaces"]
    assert found["links"]
    assert found["disks"]


def test_what_is_refused_is_a_no_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")

    def refused() -> str:
        raise PermissionError(1, "Operation not permitted")

    def missing() -> str:
        raise ImportError(name="pyroute2")

    assert tried("x", refused).how == "not permitted: Operation not permitted"
    assert "they need root, or user namespaces" in tried("namespaces", refused).how
    assert tried("x", missing).how == "pyroute2 is not installed"
    assert tried("x", lambda: "fine").yes


def test_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert tried("links", probe.network).how == "needs Linux, this is darwin"
    assert userns.enter_user_namespace() == "no: not Linux"
    kernel._libc.cache_clear()
    with pytest.raises(OSError, match="this needs Linux"):
        kernel.unshare(kernel.NEWNET)
    kernel.die_with_parent(1)


def test_a_probe_that_fails_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found = probe.probe.__wrapped__()
    assert {ability.yes for ability in found} == {False}
    assert "the probe failed" in found[0].how


def test_doctor_s_survey_is_complete() -> None:
    found = {ability.name: ability for ability in doctor.survey()}
    assert {"machine", "torch", "gpu", "git", "browser", "pulumi", "nox", "uv"} <= set(found)
    assert "cores" in found["machine"].how


def test_doctor_waits_for_no_program_that_hangs_and_starts_no_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser may take seconds only to say its version."""
    for name, does in {"git": "exec sleep 60", "chromium": f"touch {tmp_path}/started"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(doctor, "ASK_S", 0.2)
    found = {ability.name: ability for ability in doctor.survey()}
    assert not found["git"].yes
    assert "timed out after 0.2 seconds" in found["git"].how
    assert (found["browser"].yes, (tmp_path / "started").exists()) == (True, False)


def test_a_program_that_is_missing_says_what_is_off() -> None:
    missing = doctor._program("pulumi", ["no-such-program"], "clusters in a cloud are off")
    assert (missing.yes, missing.how) == (False, "no-such-program not found: clusters in a cloud are off")


def test_counters_of_a_known_proc(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 50 999 7 0 10 300 0 0\ncpu0 1\n")
    (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 2000.0\nmodel name: x\ncpu MHz\t\t: 3000.0\n")
    found = machine.counters(tmp_path)
    assert (found["steal_s"], found["cpu_s"], found["mhz"]) == (3.0, 1.6, 2500.0)


def test_counters_without_proc(tmp_path: Path) -> None:
    assert set(machine.counters(tmp_path)) <= {"load1"}


def test_an_interrupt_waits_until_the_block_is_done() -> None:
    done: list[str] = []

    def work() -> None:
        with interrupts_later():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
