"""Which replicas of an end point are said to be up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.bench.servers import HERE, free_port
from proving_ground.reports import gate
from proving_ground.serving import commands, health, load, servers
from proving_ground.serving.mistakes import ServingError
from tests.serving.stub import end_point

SOON_S = 30.0  # on a busy machine


def ended(name: str, folder: Path) -> servers.Replica:
    with subprocess.Popen(["true"]) as process:
        pass
    return servers.Replica(name, 0, process, folder / f"{name}.log")


def lines(run: RunDir) -> list[dict[str, object]]:
    return [json.loads(it) for it in (run.events / health.EVENTS).read_text().splitlines()]


def test_a_replica_without_a_proxy_is_up_while_its_process_lives(tmp_path: Path) -> None:
    run = load.new_run(tmp_path)
    with servers.started_group("r1", 0, tmp_path, ["sleep", "60"], os.environ) as one:
        both = servers.EndPoint("http://here/score", [one, ended("r2", tmp_path)], tmp_path)
        with health.told(both, run):
            await_lines(run, 1)
            one.kill()
            await_lines(run, 2)
    assert [(it["planned"], it["names"]) for it in lines(run)] == [(2, ["r1"]), (2, [])]


def await_lines(run: RunDir, number: int) -> None:
    end = time.monotonic() + SOON_S
    while len(lines(run)) < number and time.monotonic() < end:
        time.sleep(0.05)


def test_behind_a_proxy_it_is_what_the_proxy_sees(tmp_path: Path) -> None:
    tmp_path /= "in a folder whose path is longer than that of a socket may be".replace(" ", "-") + "-" * 60
    tmp_path.mkdir()
    if shutil.which("haproxy") is None and not Path("/usr/sbin/haproxy").exists():
        pytest.skip("needs HAProxy")
    front = free_port(0)
    with end_point(lambda *_: (200, b"{}")) as url:
        ports = [int(url.rpartition(":")[2].partition("/")[0]), free_port(0)]  # nobody listens at the second
        file = servers.write_proxy(tmp_path, front, ports, "/")
        command = [servers.found_proxy(), "-db", "-f", str(file)]
        with servers.started_group("haproxy", front, tmp_path, command, os.environ) as proxy:
            servers.wait_ready(proxy, "/")
            it = servers.EndPoint(f"http://{HERE}:{front}/score", [proxy, proxy], tmp_path, proxy)
            end = time.monotonic() + SOON_S
            while (found := health.up(it)) != ["r1"] and time.monotonic() < end:
                time.sleep(0.05)
            assert found == ["r1"]
            assert (tmp_path / servers.SOCKET).stat().st_mode & 0o777 == 0o600, "of nobody else"
        assert health.up(it) == [], "HAProxy is gone"


def test_of_an_end_point_that_is_not_ours_nothing_is_said(tmp_path: Path) -> None:
    run = load.new_run(tmp_path)
    with health.told(None, run):
        pass
    assert not (run.events / health.EVENTS).exists()


def test_what_callers_are_told_are_the_bounds_of_how_long_it_takes() -> None:
    words = ["p99{users=4} <= 20", "longest < 1000 ms", "p50 <= 5", "requests_per_s >= 100", "p99 >= 1"]
    assert commands.told([gate.parsed(it, "--that") for it in words]) == [
        {"figure": "p99", "users": 4, "seconds": 0.02},
        {"figure": "longest", "users": None, "seconds": 1.0},
    ]


@pytest.mark.parametrize("words", ["p99 <= 1 s", "longest{users=many} <= 5"])
def test_a_bound_that_callers_cannot_be_told_is_refused_before_anything_starts(words: str) -> None:
    with pytest.raises(ServingError, match="is in ms, and users are a whole number"):
        commands.told([gate.parsed(words, "--that")])
