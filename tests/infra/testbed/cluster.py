"""A whole cluster under one folder: etcd, API server, controller manager, scheduler, DNS, and nodes that run pods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from proving_ground.infra.cluster.images import IMAGES
from tests.engines.switch import HARNESS, Switch, switch
from tests.infra.apiserver.server import Program, Server, controlling, running, scheduling
from tests.infra.gotools import find
from tests.infra.testbed import images, node
from tests.infra.testbed.node import Node

COREFILE = """.:53 {{
    bind {address}
    kubernetes cluster.local {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
"""


@dataclass(frozen=True)
class Bed:
    """A cluster that is up."""

    server: Server
    nodes: tuple[Node, ...]
    network: Switch

    def part(self, name: str, *, on: bool) -> None:
        """Let no packet pass between a node and all others, the API server included; or let them pass again."""
        for other in (HARNESS, *(it.name for it in self.nodes if it.name != name)):
            self.network.block(name, other, on=on)


def of_stack(folder: Path) -> None:
    """The images of stack `local`."""
    images.make(folder, {component: IMAGES[component] for component in images.PARTS})


@contextlib.contextmanager
def cluster(folder: Path, count: int = 1, fill: Callable[[Path], None] = of_stack) -> Iterator[Bed]:
    """A cluster of nodes n1, n2 … with the images that `fill` makes; `folder/kubeconfig` reaches it.

    Nothing of it is left afterwards.

    Raises:
        UnavailableError: something that it takes is not on this machine.
        RuntimeError: it does not come up.
    """
    node.missing()
    numbers = range(1, count + 1)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(switch())
        nodes = [stack.enter_context(node.present(it, folder / f"n{it}", network, fill)) for it in numbers]
        server = stack.enter_context(running(folder, network.address()))
        stack.enter_context(controlling(server, folder))
        stack.enter_context(scheduling(server, folder))
        stack.enter_context(naming(folder, network))
        for it in nodes:
            it.join(server, numbers)
        node.await_ready(server, nodes)
        yield Bed(server, tuple(nodes), network)


def naming(folder: Path, network: Switch) -> Program:
    """The cluster's DNS, at the address that its kubelets tell pods.

    Raises:
        UnavailableError: it is neither there nor can it be built.
    """
    config = folder / "Corefile"
    config.write_text(COREFILE.format(address=network.address(), kubeconfig=folder / "kubeconfig"))
    return Program([str(find("coredns")), "-conf", str(config)], folder / "coredns.log")
