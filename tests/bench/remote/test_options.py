"""`--cluster ssh:…`: what is read, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.clusters import choose, elsewhere
from bench.clusters.options import described, read_options
from bench.clusters.remote.ssh import SshOptions, SshPool, destination
from bench.spec import SpecError


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
    assert SshPool(SshOptions(hostfile=str(file))).options.hosts == ("m1", "me@m2:2222")


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
