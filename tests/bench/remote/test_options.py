"""`--cluster ssh:…`: what is read, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving_ground.bench.clusters import choose, elsewhere
from proving_ground.bench.clusters.options import described, read_options
from proving_ground.bench.clusters.remote import ssh
from proving_ground.bench.clusters.remote.ssh import SshOptions, SshPool, destination
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError


def test_a_word_without_a_name_is_one_more_of_the_key_before() -> None:
    found = read_options(SshOptions, "ssh", "a,b@c:22,volume=/shared,python=/opt/py/bin/python")
    assert found == SshOptions(("a", "b@c:22"), "/opt/py/bin/python", "/shared")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("moon", "unknown cluster 'moon'; allowed: auto, local, fake, ssh:…"),
        ("ssh:", "cluster ssh: which hosts[?]"),
        ("ssh:volume=/x", "which hosts"),
        ("ssh:a,hostfile=b", "cluster ssh: hosts and hostfile: one of them says which machines"),
        ("ssh:a,a", "cluster ssh: hosts: a stands there twice"),
        (
            "ssh:a,volum=/x",
            "unknown option 'volum'; allowed: hosts, .*; did you mean 'volume'",
        ),
        ("ssh:a,volume=here", "volume.*absolute path"),
        ("ssh:a b", "hosts.*a host as ssh takes it"),
        ("ssh:a,-v", "hosts.*a host as ssh takes it"),
        ("ssh:-oProxyCommand=x", "hosts.*a host as ssh takes it|unknown option"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as why:
        choose(name)
    assert "\n" not in str(why.value)


@pytest.mark.parametrize(
    ("host", "there"),
    [("m1", "m1"), ("me@m1:2222", "ssh://me@m1:2222"), ("fe80::1", "fe80::1"), ("m1:port", "m1:port")],
)
def test_a_port_behind_a_colon_is_understood(host: str, there: str) -> None:
    assert destination(host) == there


def test_hosts_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the lab\nm1 slots=8\n\nme@m2:2222  # the new one\n")
    cluster, _ = choose(f"ssh:hostfile={file},volume=/shared")
    assert cluster.capacity == 2
    assert cluster.option == "ssh:m1,me@m2:2222,volume=/shared", "the run goes on there, whatever becomes of the file"
    assert choose("ssh:volume=/x,hosts=a")[0].option == "ssh:volume=/x,hosts=a"


def test_the_power_of_this_machine_and_of_one_that_is_two_nodes_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SshPool(SshOptions(("a", "b", "c", "d"), power="false"))
    lives = {"a": "boot 1", "b": "boot 1", "c": ssh.own_life(), "d": "other 1"}
    monkeypatch.setattr(SshPool, "seen", [{"life": it} for it in lives.values()])
    assert lives["c"]
    with pytest.raises(ClusterError, match="a is b, too: its power is not cut"):
        pool.power("a", on=False)
    with pytest.raises(ClusterError, match="c is the machine of this harness, too"):
        pool.power("c", on=False)
    with pytest.raises(ClusterError, match="power=false kill d: no word why"):
        pool.power("d", on=False)


def test_a_host_that_answers_although_it_was_switched_off_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, answer = SshPool(SshOptions(("a",), power="true")), ["boot 1"]
    monkeypatch.setattr(SshPool, "seen", [{"life": "boot 1"}])
    monkeypatch.setattr(SshPool, "_asked", lambda *_: [{"life": answer[0]}])
    monkeypatch.setattr(SshPool, "_life", lambda *_: answer[0])
    assert pool.machine("n1")["id"] == "boot 1"
    pool.power("a", on=False)
    assert pool.pulse("a")["at"] == "boot 1, switched off, answers"
    answer[0] = ""
    assert pool.pulse("a")["at"] == "boot 1", "the last that was heard"
    pool.power("a", on=True)
    answer[0] = "boot 2"
    assert pool.pulse("a")["at"] == "boot 2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "hostfile .*/hosts: No such file or directory"),
        (b"\xff\xfe", "hostfile .*/hosts: no text"),
        (b"# nobody\n", "hostfile .*/hosts: no host stands there"),
        (b"m1\n-oProxyCommand=x\n", "hostfile .*/hosts, line 2: '-oProxyCommand=x': must be a host as ssh takes it"),
        (b"m1\nm1\n", "hosts: m1 stands there twice"),
    ],
)
def test_a_hostfile_that_makes_no_sense_is_refused_in_one_line(text: bytes | None, says: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "hosts").write_bytes(text)
    with pytest.raises(SpecError, match=f"^cluster ssh: {says}") as why:
        choose(f"ssh:hostfile={tmp_path}/hosts")
    assert "\n" not in str(why.value)


def test_every_option_is_described() -> None:
    lines = described(SshOptions, "ssh").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "hosts",
        "python",
        "volume",
        "config",
        "work",
        "hostfile",
        "power",
    ]


def test_only_a_cluster_elsewhere_needs_no_namespaces_here() -> None:
    assert elsewhere(["run", "--cluster", "ssh:a,b"])
    assert elsewhere(["run", "--cluster=ssh:a,b"])
    assert not elsewhere(["run", "--cluster", "local"])
