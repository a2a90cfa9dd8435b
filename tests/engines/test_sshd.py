"""Hosts are reached by ssh without a question, lose their connections, their daemon or their power, and come back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import needs, sshd, traces
from tests.engines.sshd import Hosts

pytestmark = pytest.mark.engines

HOLD = """
import time
from tests.engines.sshd import ssh_hosts
with ssh_hosts(1) as bed:
    print(bed.folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Hosts]:
    needs.require(sshd.PROGRAMS)
    with sshd.ssh_hosts(2) as made:
        yield made


def ssh(bed: Hosts, name: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """One command over a connection of its own."""
    command = ["ssh", "-F", str(bed.config), *words[:-1], name, words[-1]]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


def output(bed: Hosts, name: str, word: str) -> str:
    """What a command writes, which must succeed."""
    done = ssh(bed, name, word)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_each_host_answers_by_its_name(bed: Hosts) -> None:
    assert [output(bed, name, "hostname; pwd") for name in bed.hosts] == [f"{name}\n/root\n" for name in ("m1", "m2")]


def test_bytes_pass_unchanged_both_ways(bed: Hosts) -> None:
    sent = os.urandom(1 << 20)
    assert ssh(bed, "m1", "cat", stdin=sent).stdout == sent


def test_a_host_with_another_key_is_refused(bed: Hosts, tmp_path: Path) -> None:
    one, other = (it.split(maxsplit=1) for it in (bed.folder / "known_hosts").read_text().splitlines())
    (tmp_path / "known").write_text(f"{one[0]} {other[1]}\n")
    done = ssh(bed, "m1", "-o", f"UserKnownHostsFile={tmp_path / 'known'}", "true")
    assert done.returncode == 255
    assert b"Host key verification failed" in done.stderr


def test_many_connect_at_once(bed: Hosts) -> None:
    command = ["ssh", "-F", str(bed.config), "m1", "true"]
    assert [it.wait() for it in [subprocess.Popen(command) for _ in range(24)]] == [0] * 24


def test_a_cut_ends_connections_and_others_can_be_made(bed: Hosts) -> None:
    command = ["ssh", "-F", str(bed.config)]
    with (
        subprocess.Popen([*command, "m1", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as cut,
        subprocess.Popen([*command, "m2", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as spared,
    ):
        for process in (cut, spared):
            assert answers(process)
        bed.cut("m1")
        assert cut.wait() == 255
        assert answers(spared)
        assert output(bed, "m1", "hostname") == "m1\n"


def answers(process: subprocess.Popen[bytes]) -> bool:
    """Whether a byte comes back."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x")
    return process.stdout.read(1) == b"x"


def test_without_its_daemon_a_host_refuses(bed: Hosts) -> None:
    bed.stop_sshd("m1")
    assert b"Connection refused" in ssh(bed, "m1", "true").stderr
    bed.start_sshd("m1")
    assert output(bed, "m1", "hostname") == "m1\n"


def test_behind_a_partition_a_host_is_silent(bed: Hosts) -> None:
    bed.partition("m1")
    assert b"timed out" in ssh(bed, "m1", "-o", "ConnectTimeout=1", "true").stderr
    bed.partition("m1", on=False)
    assert output(bed, "m1", "hostname") == "m1\n"


def test_after_a_power_cut_a_host_has_its_key_and_nothing_else(bed: Hosts) -> None:
    assert output(bed, "m1", "echo 1 >/root/file; ls /root") == "file\n"
    bed.power_off("m1")
    assert ssh(bed, "m1", "-o", "ConnectTimeout=1", "true").returncode == 255
    bed.power_on("m1")
    assert output(bed, "m1", "ls /root") == ""


def test_keys_go_after_a_kill() -> None:
    needs.require(sshd.PROGRAMS)
    (folder,) = traces.killed(HOLD)
    assert traces.until(lambda: not Path(folder).exists())
