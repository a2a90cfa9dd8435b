"""A network that loses packets: rules in the switch that joins the nodes. Called by `local.cluster`.

The switch drops what comes in at one node's port and would go out at another's, so neither end hears of it. Only IP is
dropped: addresses on the wire (ARP) still resolve, as they would where routers lie between nodes. The rules stand in
nftables' bridge family, in the switch's own namespace, and go with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from proving_ground.bench.clusters.local import links

BRIDGE_FAMILY = 7
IPV4_ON_THE_WIRE = struct.pack(">H", 0x0800)
PROTOCOL, ARRIVED_AT, LEAVES_AT = 1, 6, 7  # keys of nftables' `meta`
EQUAL, LESS = 0, 2  # operators of nftables' `cmp`
DROP, ACCEPT = 0, 1
RANDOM = 1  # kind of number that nftables' `numgen` draws
PARTS = 100_000  # of which a share of packets is told
CUT, LOSS = "cut", "loss"  # tables of one chain of the same name each

Rule = list[Any]


class Drops:
    """The switch's drop rules: `cut` has one a pair of nodes, `loss` two a node, one for each direction."""

    def __init__(self, network: links.Namespaces) -> None:
        self._switch = network.switch
        self._names: dict[str, list[str]] = {CUT: [], LOSS: []}  # what each rule is about, in their order
        self._loss: dict[str, float] = {}
        self._before: dict[str, int] = {}  # counted by rules that are gone

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Drop what the first node of a pair sends to the second, beside what is cut already."""
        new = [pair for pair in dict.fromkeys(pairs) if f"{pair[0]}>{pair[1]}" not in self._names[CUT]]
        self._add(CUT, [(f"{one}>{other}", between(one, other)) for one, other in new])

    def mend(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Let these pairs through again, or everything that was cut."""
        mended = self._names[CUT] if pairs is None else [f"{one}>{other}" for one, other in pairs]
        still = [name for name in self._names[CUT] if name not in mended]
        if len(still) < len(self._names[CUT]):
            self._clear(CUT)
            self._add(CUT, [(name, between(*name.split(">"))) for name in still])

    def lose(self, node: str, percent: float | None) -> None:
        """Drop this share of the packets from and to the node, drawn at random; None: none."""
        self._loss.pop(node, None)
        if percent is not None:
            self._loss[node] = percent
        self._clear(LOSS)
        ways = (ARRIVED_AT, LEAVES_AT)
        self._add(LOSS, [(node, share_of(way, node, part)) for node, part in self._loss.items() for way in ways])

    def counts(self) -> dict[str, int]:
        """Packets dropped so far, by pair (`n1>n2`) or by node (loss)."""
        total = dict(self._before)
        for table, names in self._names.items():
            for name, packets in zip(names, self._read(table), strict=True) if names else ():
                total[name] = total.get(name, 0) + packets
        return total

    def _add(self, table: str, rules: Sequence[tuple[str, Rule]]) -> None:
        def write(nft: Any) -> int:  # noqa: ANN401 - pyroute2 ships no types
            nft.begin()  # all of them at one moment, or none
            if not self._names[table]:
                nft.table("add", name=table)
                nft.chain("add", table=table, name=table, hook="forward", type="filter", policy=ACCEPT)
            for _, rule in rules:
                nft.rule("add", table=table, chain=table, expressions=rule)
            nft.commit()  # a refusal comes back unread: look whether they are there
            return len(_packets(nft, table))

        if rules:
            names = self._names[table] + [name for name, _ in rules]
            if links.in_tables(self._switch, BRIDGE_FAMILY, write) != len(names):
                raise OSError("this kernel does not take the rules (nftables, bridge family)")
            self._names[table] = names

    def _clear(self, table: str) -> None:
        if not self._names[table]:
            return

        def remove(nft: Any) -> int:  # noqa: ANN401 - pyroute2 ships no types
            nft.table("del", name=table)
            return len(_packets(nft, table))

        self._before = self.counts()
        if links.in_tables(self._switch, BRIDGE_FAMILY, remove):
            raise OSError("the kernel keeps the rules")
        self._names[table] = []

    def _read(self, table: str) -> list[int]:
        return links.in_tables(self._switch, BRIDGE_FAMILY, lambda nft: _packets(nft, table))


def between(one: str, other: str) -> Rule:
    """The rule that drops what goes from one node to the other."""
    return [*_port(ARRIVED_AT, one), *_port(LEAVES_AT, other), *_ip(), _counter(), *_drop()]


def share_of(way: int, node: str, percent: float) -> Rule:
    """The rule that drops a share of what arrives at, or leaves by, the node's port."""
    from pyroute2.nftables.expressions import genex  # noqa: PLC0415 - Linux only, and slow to import

    limit = struct.pack(">I", round(percent / 100 * PARTS))  # numbers in registers compare as bytes: big end first
    draw = genex("ng", {"dreg": 1, "modulus": PARTS, "type": RANDOM, "offset": 0})
    draw["attrs"][0] = ("NFTA_EXPR_NAME", "numgen")
    to_bytes = genex("byteorder", {"sreg": 1, "dreg": 1, "op": 1, "len": 4, "size": 4})
    return [*_port(way, node), *_ip(), [draw], [to_bytes], [_compare(LESS, limit)], _counter(), *_drop()]


def _port(way: int, node: str) -> Rule:
    return _matches(way, node.encode().ljust(16, b"\0"))


def _ip() -> Rule:
    return _matches(PROTOCOL, IPV4_ON_THE_WIRE)


def _matches(key: int, value: bytes) -> Rule:
    from pyroute2.nftables.expressions import genex  # noqa: PLC0415

    return [[genex("meta", {"key": key, "dreg": 1}), _compare(EQUAL, value)]]


def _compare(operator: int, value: bytes) -> Any:  # noqa: ANN401
    from pyroute2.nftables.expressions import genex  # noqa: PLC0415

    return genex("cmp", {"sreg": 1, "op": operator, "data": {"attrs": [("NFTA_DATA_VALUE", value)]}})


def _counter() -> Rule:
    from pyroute2.nftables.expressions import genex  # noqa: PLC0415

    return [genex("counter", {"bytes": 0, "packets": 0})]


def _drop() -> Rule:
    from pyroute2.nftables.expressions import verdict  # noqa: PLC0415

    return [verdict(DROP)]


def _packets(nft: Any, table: str) -> list[int]:  # noqa: ANN401
    """What the counter of each of a table's rules says, in their order."""
    rules = [rule for rule in nft.get_rules() if rule.get_attr("NFTA_RULE_TABLE") == table]
    return [
        expression.get_attr("NFTA_EXPR_DATA").get_attr("NFTA_COUNTER_PACKETS")
        for rule in rules
        for expression in rule.get_attr("NFTA_RULE_EXPRESSIONS")
        if expression.get_attr("NFTA_EXPR_NAME") == "counter"
    ]
