"""Machines share nothing with the harness but programs, and nothing is left of one whose power is cut."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import machines, needs, traces
from tests.engines.machines import Machine
from tests.engines.switch import Switch, switch

pytestmark = pytest.mark.engines

LISTEN = """
import socket
server = socket.create_server(("", 7000))
print("listening", flush=True)
held = [server.accept()]
while True:
    held.append(server.accept())
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
HOLD = """
import time
from tests.engines.machines import machines
from tests.engines.traces import namespace
with machines(2) as hosts:
    hosts[0].partition()
    hosts[0].popen(["sleep", "600"])
    print(f"pgswitch{hosts[0].network.number}", *[namespace(it.pid) for it in hosts], flush=True)
    time.sleep(600)
"""
EXIST = """
import importlib.util, os, sys
print(*map(os.path.exists, sys.argv[1:]), bool(importlib.util.find_spec("torch")))
"""
CLOCK = "import time; print(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))"


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("volume")


@pytest.fixture(scope="module")
def hosts(volume: Path) -> Iterator[list[Machine]]:
    needs.require(machines.PROGRAMS)
    with machines.machines(2, volume) as made:
        yield made


def python(machine: Machine, *words: str) -> str:
    """What a script writes on a machine."""
    return machine.run([sys.executable, "-c", *words]).stdout.strip()


@contextlib.contextmanager
def listening(machine: Machine) -> Iterator[None]:
    """Take connections on port 7000 meanwhile."""
    with machine.popen(["python3", "-c", LISTEN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield
        process.kill()


def test_a_machine_has_its_own_name_address_and_processes(hosts: list[Machine]) -> None:
    assert [it.run(["hostname"]).stdout.strip() for it in hosts] == ["m1", "m2"]
    assert [it.address in it.run(["ip", "-brief", "address"]).stdout for it in hosts] == [True, True]
    assert len(hosts[0].run(["sh", "-c", "ls -d /proc/[0-9]*"]).stdout.split()) < 10


def test_clocks_are_days_apart(hosts: list[Machine]) -> None:
    for machine in hosts:
        before = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        there = map(float, python(machine, CLOCK).split())
        after = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        for first, read, last in zip(before, there, after, strict=True):
            assert first <= read - machine.offset_s <= last
    assert hosts[1].offset_s - hosts[0].offset_s == machines.DAY_S


def test_folders_of_the_harness_are_not_there_but_this_python_is(hosts: list[Machine], tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("{}")
    hidden = [str(it) for it in (tmp_path, traces.ROOT / "bench", traces.ROOT / "runs", Path.home() / ".gitconfig")]
    assert python(hosts[0], EXIST, *hidden) == "False False False False True"
    assert hosts[0].run(["touch", "/usr/made"], check=False).returncode != 0


def test_the_volume_is_the_same_on_all(hosts: list[Machine], volume: Path) -> None:
    (volume / "from-here").write_text("1")
    hosts[0].run(["cp", f"{volume}/from-here", f"{volume}/from-m1"])
    assert hosts[1].run(["cat", f"{volume}/from-m1"]).stdout == "1"
    assert (volume / "from-m1").read_text() == "1"


def test_files_for_a_machine_are_made_with_their_folders(hosts: list[Machine]) -> None:
    hosts[0].write("/opt/a/key", "secret", 0o640)
    assert hosts[0].run(["stat", "-c", "%a", "/opt/a/key"]).stdout == "640\n"
    assert not Path("/opt/a/key").exists()


def test_machines_and_the_harness_reach_each_other_and_a_partition_parts_only_two(hosts: list[Machine]) -> None:
    one, other = hosts
    with socket.create_server((one.network.address(), 0)) as server, listening(one):
        port = str(server.getsockname()[1])
        one.run(["python3", "-c", CONNECT, "harness", port])
        other.run(["python3", "-c", CONNECT, "m1", "7000"])
        one.partition()
        with pytest.raises(TimeoutError):
            socket.create_connection((one.address, 7000), 0.3)
        other.run(["python3", "-c", CONNECT, "m1", "7000"])
        one.partition(on=False)
        socket.create_connection((one.address, 7000)).close()


def test_a_power_cut_ends_all_at_one_stroke_and_is_not_told_to_anyone(hosts: list[Machine]) -> None:
    one = hosts[0]
    space = traces.namespace(one.pid)
    with listening(one), socket.create_connection((one.address, 7000)) as line:
        assert len(traces.processes({space})) > 2
        one.kill()
        assert traces.processes({space}) == []
        line.settimeout(0)
        with pytest.raises(BlockingIOError):  # neither its end nor a reset has come
            line.recv(1)
    one.boot()


def test_a_machine_comes_back_empty_with_fresh_clocks_and_the_same_name(hosts: list[Machine]) -> None:
    one = hosts[0]
    address = one.address
    one.write("/tmp/old", "")
    one.kill()
    one.boot()
    assert one.run(["sh", "-c", "hostname; ls /tmp/old || true"]).stdout == "m1\n"
    assert one.address == address
    assert machines.FRESH_S - 1 <= float(python(one, CLOCK).split()[0]) < machines.DAY_S
    with listening(one):
        socket.create_connection((one.address, 7000)).close()


def test_nothing_is_left_at_the_end_nor_after_a_kill() -> None:
    needs.require(machines.PROGRAMS)
    with machines.machines(1) as made:
        name, space = f"pgswitch{made[0].network.number}", traces.namespace(made[0].pid)
        assert name in traces.links()
    assert name not in traces.links()
    assert traces.processes({space}) == []
    name, *spaces = traces.killed(HOLD)
    assert len(spaces) == 2
    assert traces.until(lambda: name not in traces.links() and not traces.processes(set(spaces)))


def test_a_machine_that_cannot_come_up_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs.require(machines.PROGRAMS)
    made: list[int] = []

    @contextlib.contextmanager
    def noted() -> Iterator[Switch]:
        with switch() as network:
            made.append(socket.if_nametoindex(f"pgswitch{network.number}"))
            yield network

    monkeypatch.setattr(machines, "switch", noted)
    with (
        pytest.raises(OSError, match=r"m1 does not come up: mount: .*nowhere"),
        machines.machines(1, tmp_path / "nowhere"),
    ):
        pass
    assert len(made) == 1
    assert traces.until(lambda: made[0] not in {number for number, _ in socket.if_nameindex()})


def test_a_machine_whose_reader_is_killed_does_not_spin_and_still_ends(hosts: list[Machine]) -> None:
    def readers() -> list[str]:
        return hosts[0].run(["pgrep", "-P", "1", "-x", "sh"], check=False).stdout.split()

    (before,) = readers()
    hosts[0].run(["kill", "-9", before])
    assert traces.until(lambda: bool(readers()) and readers() != [before])

    def used() -> int:
        return sum(map(int, Path(f"/proc/{hosts[0].pid}/stat").read_text().split()[13:15]))

    before_s = used()
    time.sleep(0.5)
    assert used() - before_s < 20, "of 50 hundredths of a second"
