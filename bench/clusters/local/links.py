"""The nodes' network: a namespace each, joined by virtual cables to a switch, with a rate limit in both directions.

Called by `local.cluster`, as root or inside a user namespace; speaks to the kernel through pyroute2. The
namespaces have no names: descriptors and processes hold them, and with the last of those everything in them is gone.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from proving_ground.bench.agent import kernel

INTERFACE = "eth0"
"""A node's end of its cable, as the processes there see it."""

MAX_NODES = 250  # addresses 10.77.0.1 to 10.77.0.250

# Jumbo frames, as between the nodes of a training cluster: headers take 0.7 % of the rate (4.4 % at 1,500 bytes).
MTU_BYTES = 9000

# A bucket of 1 ms of the rate keeps short messages from exceeding the line; the floor lets a burst of segments through.
BURST_S = 0.001
BURST_MIN_BYTES = 16_000
SEGMENTS_MAX_BYTES = 65_536
QUEUE_LATENCY = "50ms"
MOST_MBPS = 34_000  # tbf's rate is a 32-bit number of bytes a second
DELAYED_PACKETS = 10_000  # that may be under way at once

T = TypeVar("T")


@dataclass(frozen=True)
class Namespaces:
    """Descriptors of the namespaces; the bridge that joins the nodes is in the switch's."""

    switch: int
    nodes: dict[str, int]


def address_of(node: str) -> str:
    """The address of node `n<k>`: 10.77.0.k."""
    return f"10.77.0.{int(node[1:])}"


def open_network(names: Sequence[str]) -> Namespaces:
    """New, empty namespaces for the switch and for every node.

    Raises:
        OSError: not permitted.
    """
    return Namespaces(_new_namespace(), {name: _new_namespace() for name in names})


def wire(network: Namespaces) -> None:
    """Plug every node into the switch, give it its address, and bring it all up; links are unlimited."""
    _inside(network.switch, lambda ip: _wire_switch(ip, network.nodes))
    for name, namespace in network.nodes.items():
        _inside(namespace, functools.partial(_wire_node, name=name))


def set_rate(network: Namespaces, mbps: float | None) -> None:
    """Limit every node's link to `mbps` (Mb/s on the wire, each direction), or lift the limit; takes effect at once.

    Raises:
        OSError: the kernel would not, or cannot count that far.
    """
    if mbps is not None and mbps > MOST_MBPS:
        raise OSError(errno.ERANGE, f"a link here can be limited to at most {MOST_MBPS} Mb/s")
    _inside(network.switch, lambda ip: _limit(ip, network.nodes, mbps))
    for namespace in network.nodes.values():
        _inside(namespace, lambda ip: _limit(ip, [INTERFACE], mbps))


def set_rate_of(network: Namespaces, node: str, mbps: float | None) -> None:
    """The same for a single node."""
    _inside(network.switch, lambda ip: _limit_one(ip, node, mbps))
    _inside(network.nodes[node], lambda ip: _limit_one(ip, INTERFACE, mbps))


def set_delay_of(network: Namespaces, node: str, ms: float | None) -> None:
    """Hold every packet of a node for so long, each way; below the rate limit where there is one.

    Raises:
        OSError: this kernel has no netem.
    """
    _inside(network.switch, lambda ip: _delay(ip, node, ms))
    _inside(network.nodes[node], lambda ip: _delay(ip, INTERFACE, ms))


def state_of(network: Namespaces, node: str) -> dict[str, Any]:
    """What the kernel says of both ends of a node's cable: rates in Mb/s, delays in ms, packets held back so far."""
    ends = [
        _inside(network.nodes[node], lambda ip: _state(ip, INTERFACE)),
        _inside(network.switch, lambda ip: _state(ip, node)),
    ]
    return {key: [end[key] for end in ends] for key in ends[0]}


def close_network(network: Namespaces) -> None:
    """Let go of the namespaces; the kernel removes those that no process is in any more."""
    for descriptor in (network.switch, *network.nodes.values()):
        os.close(descriptor)


def burst_bytes(mbps: float) -> int:
    """The bucket of a link: what it may send at once after a pause."""
    return max(BURST_MIN_BYTES, int(mbps * 1e6 / 8 * BURST_S))


def in_thread(action: Callable[[], T]) -> T:
    """What `action` returns, called in a thread that ends right after: namespaces belong to threads."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result()


def own_namespace() -> int:
    """A descriptor of the network namespace that the calling thread is in."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _new_namespace() -> int:
    def create() -> int:
        kernel.unshare(kernel.NEWNET)
        return own_namespace()

    return in_thread(create)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """What the kernel refuses over netlink is an OSError like any other."""
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415 - Linux only, and slow to import

    try:
        yield
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from None


def _inside(namespace: int, action: Callable[[Any], T]) -> T:
    """What `action` returns, called with a netlink socket inside of the namespace."""
    from pyroute2 import IPRoute  # noqa: PLC0415 - Linux only, and slow to import

    def enter() -> T:
        kernel.setns(namespace, kernel.NEWNET)
        with _as_os_errors(), IPRoute() as ip:
            return action(ip)

    return in_thread(enter)


def in_tables(namespace: int, family: int, action: Callable[[Any], T]) -> T:
    """What `action` returns, called with an nftables socket of an address family inside of the namespace."""
    from pyroute2.nftables.main import NFTables  # noqa: PLC0415 - Linux only, and slow to import

    def enter() -> T:
        kernel.setns(namespace, kernel.NEWNET)
        with _as_os_errors(), NFTables(nfgen_family=family) as tables:
            return action(tables)

    return in_thread(enter)


def _wire_switch(ip: Any, nodes: dict[str, int]) -> None:  # noqa: ANN401 - pyroute2 ships no types
    ip.link("add", ifname="switch", kind="bridge", mtu=MTU_BYTES)
    (bridge,) = ip.link_lookup(ifname="switch")
    ip.link("set", index=bridge, state="up")
    for name, namespace in nodes.items():
        peer = {"ifname": INTERFACE, "net_ns_fd": namespace, "mtu": MTU_BYTES}
        ip.link("add", ifname=name, kind="veth", mtu=MTU_BYTES, peer=peer)
        (port,) = ip.link_lookup(ifname=name)
        ip.link("set", index=port, master=bridge, state="up")


def _wire_node(ip: Any, name: str) -> None:  # noqa: ANN401
    (loopback,) = ip.link_lookup(ifname="lo")
    ip.link("set", index=loopback, state="up")
    (port,) = ip.link_lookup(ifname=INTERFACE)
    ip.addr("add", index=port, address=address_of(name), prefixlen=24)
    ip.link("set", index=port, state="up")


def _limit(ip: Any, interfaces: Iterable[str], mbps: float | None) -> None:  # noqa: ANN401
    for interface in interfaces:
        _limit_one(ip, interface, mbps)


def _limit_one(ip: Any, interface: str, mbps: float | None) -> None:  # noqa: ANN401
    (port,) = ip.link_lookup(ifname=interface)
    if mbps is None:
        ip.link("set", index=port, gso_max_size=SEGMENTS_MAX_BYTES)
        if any(qdisc.get_attr("TCA_KIND") == "tbf" for qdisc in ip.get_qdiscs(index=port)):
            ip.tc("del", index=port, root=True)
        return
    burst = burst_bytes(mbps)
    # Bursts of segments (headers included) larger than the bucket would be cut up by the kernel, at the CPU's expense.
    ip.link("set", index=port, gso_max_size=min(SEGMENTS_MAX_BYTES, burst * 7 // 8))
    rate = f"{round(mbps * 1000)}kbit"
    ip.tc("replace", "tbf", port, handle="1:", rate=rate, burst=burst, latency=QUEUE_LATENCY)


def _delay(ip: Any, interface: str, ms: float | None) -> None:  # noqa: ANN401
    (port,) = ip.link_lookup(ifname=interface)
    kinds = {qdisc.get_attr("TCA_KIND") for qdisc in ip.get_qdiscs(index=port)}
    below = {"parent": "1:1"} if "tbf" in kinds else {}
    if ms is not None:
        ip.tc("replace", "netem", port, handle="2:", delay=round(ms * 1000), limit=DELAYED_PACKETS, **below)
    elif "netem" in kinds:
        ip.tc("del", index=port, **(below | {"handle": "2:"} if below else {"root": True}))


def _state(ip: Any, interface: str) -> dict[str, Any]:  # noqa: ANN401
    """Of one end: `mbps` (None: no limit), `delay_ms`, `held_back` (packets that had to wait for the bucket)."""
    found: dict[str, Any] = {"mbps": None, "delay_ms": None, "held_back": 0}
    (port,) = ip.link_lookup(ifname=interface)
    for qdisc in ip.get_qdiscs(index=port):
        kind, options = qdisc.get_attr("TCA_KIND"), qdisc.get_attr("TCA_OPTIONS")
        if kind == "tbf":
            found["mbps"] = round(options.get_attr("TCA_TBF_PARMS")["rate"] * 8 / 1e6, 3)
            found["held_back"] = qdisc.get_attr("TCA_STATS")["overlimits"]
        if kind == "netem":
            found["delay_ms"] = options["delay"] / 1000
    return found
