"""Faults of a batch system: what proves each, and what one that does nothing leaves as evidence.

`tests/engines/test_slurm_faults.py` has a real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from proving_ground.bench.protocols import Cluster, ClusterError
from proving_ground.bench.spec import SpecError
from proving_ground.chaos.faults import FAULTS, Injection
from proving_ground.chaos.targets import View
from tests.chaos.conftest import VirtualEngine, works

KEYS = (
    "slurm_node_down",
    "slurm_node_drain",
    "slurm_requeue",
    "slurm_preempt",
    "slurm_time_limit",
    "slurmd_kill",
    "slurmctld_kill",
)
NAMES = {"down": "down", "drain": "draining"}


@dataclass
class System(VirtualEngine):
    """A batch system in virtual time with one node n2 on machine e2."""

    state: str = "allocated"
    begun: int = 1  # how often the job has begun
    running: bool = True
    has: bool = True  # whether the job has e2
    agent: str = "a1"
    daemons: int = 1  # that have registered so far
    slurmd: bool = True
    controller: bool = True
    others: bool = False
    limit_min: float = 120.0
    noticed_t: float | None = None
    marks: list[str] = field(default_factory=list)

    def machine(self, node: str) -> Mapping[str, Any]:
        """What there is."""
        self.ask()
        job = "RUNNING" if self.running else "PENDING"
        known = {"name": "e2", "where": "e2", "state": self.state, "reason": "none", "job": job, "agent": self.agent}
        its = f"1 since {self.begun}" if self.has and self.running else ""
        return {"node": node, "id": its, "noticed_t": self.noticed_t, **known}

    def state_of(self, where: str) -> Mapping[str, Any]:
        """Of the machine."""
        self.ask()
        return {"where": where, "state": self.state, "reason": "none"}

    def mark(self, where: str, state: str) -> None:
        """Do it, and end what runs on a machine that is down."""
        if self.others and state != "resume":
            raise ClusterError(f"{where} is drained already")
        if where in self.refuses:
            raise SpecError(f"{where}: Invalid user id")
        self.marks.append(state)
        if self.mutant == "mark" or (self.mutant == "open" and state == "resume"):
            return
        if state == "down" and self.mutant != "agent":
            self.has, self.agent = False, ""
        self.state = NAMES.get(state, "idle")

    def requeue(self, nodes: Sequence[str]) -> None:
        """End the job."""
        assert nodes == ("n2",)
        if self.mutant != "requeue":
            self.running, self.agent = False, ""
        if self.mutant == "begun":
            self.running, self.begun = True, 2

    def limit(self, *, on: bool) -> Mapping[str, Any]:
        """Lower the limit, at which the job is requeued after its notice, or raise it."""
        if not on and "limit" in self.refuses:
            raise SpecError("job 7: Access/permission denied")
        before_min, self.limit_min = self.limit_min, 3.0 if on else 120.0
        if self.mutant == "limit" or (self.mutant == "lowered" and not on):
            self.limit_min = before_min
        if on and self.mutant != "ignored":
            self.noticed_t = None if self.mutant == "notice" else self.t + 30.0
            self.requeue(("n2",))
        return {"before_min": before_min, "limit_min": self.limit_min, "left_s": 110.0}

    def preempt(self, *, on: bool) -> None:
        """Give the machine to another job, or free it."""
        if not on or self.mutant == "preempt":
            self.running = True
            return
        self.requeue(("n2",))
        self.state = "idle" if self.mutant == "nobody" else "allocated"
        if self.mutant == "short":
            self.sleep = self.free  # type: ignore[method-assign]

    def free(self, seconds: float) -> None:
        """The other job is over before its time."""
        self.t, self.state = self.t + seconds, "idle"

    def pulse(self, where: str) -> Mapping[str, Any]:
        """The daemon that registered last."""
        self.ask()
        return {"where": where, "at": f"at {self.daemons}", "every_s": 300.0}

    def daemon(self, where: str, *, on: bool) -> None:
        """Kill it, or start another."""
        assert where == "e2"
        if self.mutant != "daemon":
            self.slurmd, self.daemons = on, self.daemons + on

    def answers(self, where: str) -> bool:
        """Whether it is there; one that another program starts again at once is."""
        self.ask()
        assert where == "e2"
        return self.slurmd or self.mutant == "restarted"

    def control(self, *, on: bool) -> None:
        """Stop or start the controller."""
        self.controller = on or self.mutant == "controller"

    def controlled(self) -> bool:
        """Whether it answers."""
        self.ask()
        return self.controller


def scene(system: System, key: str) -> Injection[Any]:
    return Injection(
        cast(Cluster, system), ("n2",), View(("n1", "n2"), "n1"), FAULTS[key].with_defaults({}, "test"), 3,
        {"n2": {7: "n2.0"}}, None, lambda *_, **__: None,
    )  # fmt: skip


def tried(key: str, mutant: str = "") -> bool | None:
    """Whether the report takes it for done."""
    system = System(mutant, slurmd=mutant != "away")
    made, fault = scene(system, key), FAULTS[key]
    begin = fault.inject(made)
    system.sleep(fault.hold_s)
    end = fault.heal(made)
    assert fault.heal(made) == {}, "twice does nothing"
    return works(fault, made, begin, end)


@pytest.mark.parametrize("key", KEYS)
def test_what_was_done_is_proved(key: str) -> None:
    assert tried(key) is True


@pytest.mark.parametrize(
    ("key", "mutant"),
    [
        ("slurm_node_down", "mark"),  # nothing was marked
        ("slurm_node_down", "agent"),  # it was, and what ran there went on
        ("slurm_node_down", "open"),  # it stayed down
        ("slurm_node_drain", "mark"),
        ("slurm_node_drain", "open"),
        ("slurm_requeue", "requeue"),  # the job goes on
        ("slurm_requeue", "begun"),  # it is said to run by those who ask
        ("slurm_preempt", "preempt"),  # no job was preferred
        ("slurm_preempt", "nobody"),  # it was requeued, and nobody has the machine
        ("slurm_preempt", "short"),  # nobody has it at the end
        ("slurm_time_limit", "limit"),  # it is as it was
        ("slurm_time_limit", "lowered"),  # it stays lowered
        ("slurm_time_limit", "notice"),  # nobody had a notice
        ("slurm_time_limit", "ignored"),  # the job goes on
        ("slurm_time_limit", "requeue"),  # it does after its notice
        ("slurm_time_limit", "begun"),  # it is said to run by those who ask
        ("slurmd_kill", "restarted"),  # somebody else started it again at once
        ("slurmd_kill", "away"),  # it never was there
        ("slurmctld_kill", "controller"),  # it still answers
    ],
)
def test_what_did_not_happen_is_denied(key: str, mutant: str) -> None:
    assert tried(key, mutant) is False


ASKED = [(key, it.at) for key in KEYS for it in FAULTS[key].proof]


@pytest.mark.parametrize(("key", "path"), ASKED)
def test_what_nobody_recorded_is_not_proved(key: str, path: str) -> None:
    """Each thing that the proof asks for is missed where it lacks."""
    system, fault = System(), FAULTS[key]
    made = scene(system, key)
    told = {"begin": fault.inject(made)}
    system.sleep(fault.hold_s)
    told["end"] = fault.heal(made)
    when, name, *_ = path.split(".")
    del told[when][name]
    assert works(fault, made, told["begin"], told["end"]) is None


def test_a_daemon_that_does_not_register_again_is_told() -> None:
    with pytest.raises(ClusterError, match="e2: not registered again 180 s after"):
        tried("slurmd_kill", "daemon")


@pytest.mark.parametrize("key", ["slurm_node_down", "slurm_node_drain"])
def test_what_somebody_else_has_closed_stays_closed(key: str) -> None:
    system = System(others=True)
    with pytest.raises(ClusterError, match="drained already"):
        FAULTS[key].inject(scene(system, key))
    assert system.marks == []


def test_a_time_limit_that_could_not_be_raised_is_told_and_raised_later() -> None:
    system, fault = System(refuses={"limit"}), FAULTS["slurm_time_limit"]
    made = scene(system, "slurm_time_limit")
    fault.inject(made)
    with pytest.raises(SpecError, match="Access/permission denied"):
        fault.heal(made)
    system.refuses.clear()
    assert fault.heal(made)["limit"]["limit_min"] == 120.0


@pytest.mark.parametrize("key", [key for key in KEYS if key not in ("slurm_requeue", "slurm_time_limit")])
def test_what_gets_no_answer_is_undone_all_the_same(key: str) -> None:
    """And the heal says that it got none; what is undone is not undone twice."""
    system, fault = System(), FAULTS[key]
    made = scene(system, key)
    fault.inject(made)
    system.silent = True
    with pytest.raises(ClusterError, match="Unable to contact"):
        fault.heal(made)
    assert (system.state in ("idle", "allocated"), system.running, system.slurmd, system.controller) == (True,) * 4
    assert fault.heal(made) == {}


@pytest.mark.parametrize("key", ["slurm_node_down", "slurm_node_drain"])
def test_a_machine_that_stays_closed_does_not_keep_the_others_from_being_opened(key: str) -> None:
    system, fault = System(refuses={"e1"}), FAULTS[key]
    made = scene(system, key)
    made.state["marked"] = ["e1", "e2", "e3"]
    with pytest.raises(ClusterError, match=r"^e1: e1: Invalid user id$"):
        fault.heal(made)
    assert system.marks == ["resume", "resume"]
    system.refuses.clear()
    assert fault.heal(made)["resumed"] == ["e1"]
