"""Faults by an engine's own means: what proves each, and what an engine that does nothing leaves as evidence.

`tests/engines/test_kubernetes.py` and `test_kubernetes_waits.py` have a real engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from proving_ground.bench.protocols import Cluster, ClusterError
from proving_ground.bench.spec import SpecError
from proving_ground.chaos.faults import FAULTS, Injection
from proving_ground.chaos.targets import View
from tests.chaos.conftest import VirtualEngine, works

KEYS = ("pod_delete", "pod_kill", "node_drain", "node_cordon", "node_taint", "container_kill", "node_lost")
WITHHELD = ("quota_used_up", "webhook_away")
WHERE = "host-a"


@dataclass
class Engine(VirtualEngine):
    """A Kubernetes in virtual time with one node n2 on one machine."""

    pod: int = 1  # which pod it is, by number
    cordons: list[str] = field(default_factory=list)
    off: bool = False
    away: frozenset[str] = frozenset()
    ends: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    last_pulse: float = 0.0
    stopped: bool = False
    others: bool = False
    withheld: str = ""
    gone_t: float = math.inf  # when the last pod went

    def sleep(self, seconds: float) -> None:
        """A kubelet renews its lease every ten seconds, unless it is off."""
        super().sleep(seconds)
        if not self.off or self.mutant == "power":
            self.last_pulse = max(self.last_pulse, self.t // 10 * 10)

    def machine(self, node: str) -> Mapping[str, Any]:
        """The pod that there is; another comes after ten seconds where it may."""
        del node
        if self.withheld and self.gone_t <= self.t and self.mutant != "another":
            return {"node": "n2", "id": "", "name": "", "where": "", "agent": ""}
        return {"node": "n2", "id": f"uid-{self.pod}", "name": f"p-{self.pod}", "where": WHERE, "agent": f"a{self.pod}"}

    def _end(self, name: str, code: int) -> None:
        if self.mutant != "pod":
            self.ends[name] = {"reason": "Error", "code": 1 if self.mutant == "code" else code}
            self.pod += 1
            self.gone_t = self.t

    def withhold(self, by: str, *, on: bool) -> None:
        """Note it."""
        if on and self.others:
            raise ClusterError("its namespace has pods of others")
        self.withheld = by if on else ""

    def refusals(self) -> Sequence[Mapping[str, Any]]:
        """What is said of the first try, ten seconds later."""
        self.ask()
        tried = self.withheld and self.t > self.gone_t + 10 and self.mutant != "refusal"
        return [{"at": "then", "reason": "FailedCreate", "message": self.withheld}] if tried else []

    def remove(self, name: str, way: str) -> None:
        """Take the pod away."""
        del way
        self._end(name, 143)

    def cordon(self, where: str, *, on: bool) -> None:
        """Note it."""
        if where in self.refuses:
            raise SpecError(f"nodes {where} is forbidden")
        (self.cordons.append if on else self.cordons.remove)(where)

    def taint(self, where: str, *, on: bool) -> None:
        """Evict the pod."""
        if self.others:
            raise ClusterError(f"{where} has pods of others")
        self.cordon(where, on=on)
        if on:
            if self.mutant != "eviction":
                self.events.append({"at": "now", "reason": "TaintManagerEviction", "message": ""})
            self._end(f"p-{self.pod}", 143)

    def told(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The events."""
        return [{"at": "before", "reason": "Started", "message": name}, *self.events]

    def ended(self, name: str) -> Mapping[str, Any]:
        """How it ended."""
        return self.ends.get(name, {})

    def crash(self, node: str) -> None:
        """End its container."""
        del node
        self._end(f"p-{self.pod}", 137)

    def power(self, where: str, *, on: bool) -> None:
        """Switch the machine."""
        assert where == WHERE
        self.off = not on or self.mutant == "dead"
        self.t += 0.1

    def pulse(self, where: str) -> Mapping[str, Any]:
        """The lease; reading it takes a moment."""
        self.ask()
        self.t += 0.1
        self.sleep(0.0)
        return {"where": where, "at": str(self.last_pulse), "every_s": 10.0}

    def control(self, *, on: bool) -> None:
        """Stop or start the API server."""
        self.stopped = not on and self.mutant != "api"
        self.away = frozenset({"n1", "n2"}) if self.stopped and self.mutant != "lines" else frozenset()

    def controlled(self) -> bool:
        """Whether it answers."""
        self.ask()
        return not self.stopped


def scene(engine: Engine, key: str) -> Injection[Any]:
    return Injection(
        cast(Cluster, engine), ("n2",), View(("n1", "n2"), "n1"), FAULTS[key].with_defaults({}, "test"), 3,
        {"n2": {7: "n2.0"}}, None, lambda *_, **__: None,
    )  # fmt: skip


def tried(key: str, mutant: str = "", held_s: float | None = None) -> bool | None:
    """Whether the report takes it for done."""
    engine = Engine(mutant)
    made, fault = scene(engine, key), FAULTS[key]
    begin = fault.inject(made)
    engine.sleep(fault.hold_s if held_s is None else held_s)
    end = fault.heal(made)
    assert (engine.cordons, engine.off, engine.stopped, engine.withheld) == ([], False, False, ""), "it was undone"
    assert fault.heal(made) in ({}, {"uncordoned": []}, {"untainted": []}), "twice does nothing"
    return works(fault, made, begin, end)


@pytest.mark.parametrize("key", [*KEYS, *WITHHELD, "api_server_away"])
def test_what_was_done_is_proved(key: str) -> None:
    assert tried(key) is True


@pytest.mark.parametrize(
    ("key", "mutant"),
    [
        *((key, "pod") for key in (*KEYS, *WITHHELD) if key != "node_lost"),  # the pod is still there
        *((key, "refusal") for key in WITHHELD),  # the Job never tried, or was not refused
        *((key, "another") for key in WITHHELD),  # it was, and has a pod all the same
        ("node_taint", "eviction"),  # it went, and not for the taint
        ("container_kill", "code"),  # it ended by itself
        ("node_lost", "power"),  # its kubelet went on
        ("api_server_away", "api"),  # it still answers
        ("api_server_away", "lines"),  # it was another's
    ],
)
def test_what_did_not_happen_is_denied(key: str, mutant: str) -> None:
    assert tried(key, mutant) is False


def test_a_machine_that_was_off_for_less_than_it_is_silent_anyway_proves_nothing() -> None:
    assert tried("node_lost", held_s=5.0) is False


@pytest.mark.parametrize("key", ["node_taint", "quota_used_up"])
def test_a_fault_that_could_not_be_done_leaves_nothing(key: str) -> None:
    engine = Engine(others=True)
    with pytest.raises(ClusterError, match="pods of others"):
        FAULTS[key].inject(scene(engine, key))
    assert (engine.cordons, engine.withheld, engine.t) == ([], "", 0.0)


@pytest.mark.parametrize("key", WITHHELD)
def test_what_keeps_pods_back_stays_until_the_engine_has_tried(key: str) -> None:
    assert tried(key, held_s=0.0) is True


def test_a_machine_that_does_not_come_back_is_told() -> None:
    engine = Engine()
    made = scene(engine, "node_lost")
    FAULTS["node_lost"].inject(made)
    engine.sleep(20)
    engine.mutant = "dead"
    with pytest.raises(ClusterError, match="host-a: no sign of life 180 s after"):
        FAULTS["node_lost"].heal(made)


@pytest.mark.parametrize("key", [*WITHHELD, "node_lost", "api_server_away"])
def test_what_gets_no_answer_is_undone_all_the_same(key: str) -> None:
    """And the heal says that it got none; what is undone is not undone twice."""
    engine, fault = Engine(), FAULTS[key]
    made = scene(engine, key)
    fault.inject(made)
    engine.silent = True
    with pytest.raises(ClusterError, match="was refused"):
        fault.heal(made)
    assert (engine.off, engine.stopped, engine.withheld) == (False, False, "")
    assert fault.heal(made) == {}


@pytest.mark.parametrize(
    ("key", "state", "opened"), [("node_drain", "cordoned", "uncordoned"), ("node_taint", "tainted", "untainted")]
)
def test_a_machine_that_stays_closed_does_not_keep_the_others_from_being_opened(
    key: str, state: str, opened: str
) -> None:
    engine, fault = Engine(cordons=["a", "b", "c"], refuses={"a"}), FAULTS[key]
    made = scene(engine, key)
    made.state[state] = ["a", "b", "c"]
    with pytest.raises(ClusterError, match=r"^a: nodes a is forbidden$"):
        fault.heal(made)
    assert engine.cordons == ["a"]
    engine.refuses.clear()
    assert fault.heal(made) == {opened: ["a"]}
    assert engine.cordons == []
