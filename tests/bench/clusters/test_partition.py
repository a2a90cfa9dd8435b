"""The switch's drop rules by themselves: what is counted and kept, and that a kernel's refusal is noticed."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from proving_ground.bench.agent import kernel
from proving_ground.bench.clusters.local import links, partition
from proving_ground.bench.clusters.local.partition import Drops

pytestmark = pytest.mark.root


@pytest.fixture
def network() -> Iterator[links.Namespaces]:
    made = links.open_network(["n1", "n2", "n3"])
    links.wire(made)
    yield made
    links.close_network(made)


def send(network: links.Namespaces, one: str, other: str, count: int = 1) -> None:
    """Datagrams that nobody listens to: they are dropped on the way or at their end."""

    def inside() -> None:
        kernel.setns(network.nodes[one], kernel.NEWNET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            for _ in range(count):
                out.sendto(b"x", (links.address_of(other), 9))

    links.in_thread(inside)


def test_only_cut_pairs_are_dropped_and_counts_outlive_the_rules(network: links.Namespaces) -> None:
    drops = Drops(network)
    assert drops.counts() == {}
    drops.mend()
    drops.cut([("n1", "n2"), ("n1", "n2")])
    for one, other in (("n1", "n2"), ("n2", "n3"), ("n1", "n3")):  # none whose answer would be dropped
        send(network, one, other, 3)
    assert drops.counts() == {"n1>n2": 3}
    drops.cut([("n1", "n2"), ("n3", "n2")])
    send(network, "n3", "n2", 2)
    drops.mend([("n1", "n2")])
    send(network, "n1", "n2")
    send(network, "n3", "n2")
    assert drops.counts() == {"n1>n2": 3, "n3>n2": 3}
    drops.mend()
    send(network, "n3", "n2")
    assert drops.counts() == {"n1>n2": 3, "n3>n2": 3}


def test_losses_of_two_nodes_are_apart_from_each_other_and_from_cuts(network: links.Namespaces) -> None:
    drops = Drops(network)
    drops.cut([("n1", "n3")])
    drops.lose("n2", 100)
    drops.lose("n3", 100)
    send(network, "n2", "n1", 5)
    send(network, "n1", "n3", 2)
    counts = drops.counts()
    assert (counts["n2"], counts["n3"] + counts["n1>n3"]) == (5, 2), "whoever of two comes first"
    drops.lose("n2", None)
    send(network, "n1", "n2", 5)
    assert drops.counts()["n2"] == 5
    drops.lose("n3", None)
    drops.mend()


def test_a_kernel_that_refuses_a_rule_is_noticed(network: links.Namespaces, monkeypatch: pytest.MonkeyPatch) -> None:
    drops = Drops(network)
    monkeypatch.setattr(partition, "DROP", 99)  # no such verdict
    with pytest.raises(OSError, match=r"Invalid argument|does not take the rules"):
        drops.cut([("n1", "n2")])
    monkeypatch.undo()
    drops.cut([("n1", "n2")])
    send(network, "n1", "n2")
    assert drops.counts() == {"n1>n2": 1}, "nothing was left of the attempt"
