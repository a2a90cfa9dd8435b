"""`--cluster ssh:…`: what is read, and what is refused in one line."""

from __future__ import annotations

import pytest

from bench.clusters import choose, elsewhere
from bench.clusters.options import described, read_options
from bench.clusters.remote.ssh import SshOptions, destination
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
        ("ssh:a,a", "cluster ssh: hosts: a stands there twice"),
        (
            "ssh:a,volum=/x",
            "unknown option 'volum'; allowed: hosts, .*; did you mean 'volume'",
        ),
        ("ssh:a,volume=here", "volume.*absolute path"),
        ("ssh:a b", "hosts.*a host as ssh takes it"),
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


def test_every_option_is_described() -> None:
    lines = described(SshOptions, "ssh").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["hosts", "python", "volume", "config", "work"]


def test_only_a_cluster_elsewhere_needs_no_namespaces_here() -> None:
    assert elsewhere(["run", "--cluster", "ssh:a,b"])
    assert elsewhere(["run", "--cluster=ssh:a,b"])
    assert not elsewhere(["run", "--cluster", "local"])
