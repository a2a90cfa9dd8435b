"""Does the faults, tells with evidence what was really done, and heals whatever happens. Used by `bench.run`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proving_ground.bench.jobview import JobView
from proving_ground.bench.protocols import Cluster, ClusterError, Emit, Operation
from proving_ground.bench.spec import SpecError
from proving_ground.chaos.faults import Injection
from proving_ground.chaos.spec import FaultSpec, clash, faults_of, refuse_the_last
from proving_ground.chaos.targets import View, resolve


@dataclass
class AtWork:
    """A fault that is not healed yet."""

    spec: FaultSpec
    trial: str
    injection: Injection[Any]


def workers(spec: FaultSpec, view: JobView) -> Mapping[str, Mapping[int, str]]:
    """Node → the workers there that a fault of one process may hit; aimed at rank 0 it hits that one."""
    found = view.pids()
    if spec.where == "rank0" and (name := view.writer()):
        node = view.workers[name].node
        found[node] = {pid: it for pid, it in found.get(node, {}).items() if it == name}
    return found


class FaultNemesis:
    """A Nemesis that does the faults of `chaos.faults`."""

    def __init__(self) -> None:
        self.down: Collection[str] = frozenset()
        self._cluster: Cluster | None = None
        self._emit: Emit = lambda _event, **_fields: None
        self._at_work: dict[str, AtWork] = {}
        self._broken: list[AtWork] = []  # what could not be undone

    def needs(self, fault: Mapping[str, Any]) -> Collection[str]:
        """The abilities without which a fault cannot be done."""
        (spec,) = faults_of([fault], "plan")
        return spec.fault.needs

    def traits(self, fault: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a fault ends and damages, and what proves it: for the plan."""
        (spec,) = faults_of([fault], "plan")
        return spec.fault.traits(spec.args)

    def setup(self, cluster: Cluster, emit: Emit) -> None:
        """Get hold of the cluster."""
        self._cluster, self._emit = cluster, emit

    def invoke(self, operation: Operation, view: JobView) -> None:
        """Do one operation of the schedule's: arm, inject, heal or refuse."""
        if operation.name == "heal":
            self._heal(operation.args["fault"])
        elif operation.name == "refuse":
            self._refuse(operation.args["spec"], view, operation.args["why"])
        elif operation.name == "arm":
            self._arm(operation.args["spec"], view)
        else:
            self._inject(operation.args["spec"], view)

    def calm(self) -> None:
        """Heal all that is still broken; what cannot be is told, and does not keep the rest from being healed."""
        for fault in list(self._at_work):
            self._heal(fault)
        self.down = frozenset()

    def teardown(self) -> None:
        """The same, at the end of the run; what could not be undone in its time is tried once more."""
        self.calm()
        for it in self._broken:
            try:
                it.spec.fault.heal(it.injection)
                said = "undone at the end of the run"
            except (ClusterError, SpecError, OSError) as why:
                said = f"not undone: {why}"
            self._emit("warning", message=f"{it.trial} {it.spec.id} {it.spec.kind}: {said}")
        self._broken.clear()

    def _arm(self, spec: FaultSpec, view: JobView) -> None:
        """Ask the ranks that are aimed at to stand still at the fault's phase (`training.phases`)."""
        try:
            nodes = self._aim(spec, view)
        except SpecError:
            nodes = ()  # it is refused, with the reason, when it is due
        held = view.ranks_of(nodes) if set(nodes) & set(view.nodes) else [0]
        ranks = [0] if spec.phase in ("checkpoint_write", "before_rename") else held
        hold = {"id": spec.id, "phase": spec.phase, "ranks": ranks}
        if view.control:
            temporary = view.control / "hold.new"
            temporary.write_text(json.dumps(hold))
            temporary.rename(view.control / "hold.json")
            self._publish(view.control / "hold.json")

    def _aim(self, spec: FaultSpec, view: JobView) -> tuple[str, ...]:
        found = resolve(spec.where, self._known(view), spec.seed)
        refuse_the_last(spec, found, view.nodes)
        return found

    def _known(self, view: JobView) -> View:
        """The job as targets see it."""
        return View(tuple(view.nodes), view.rank0(), view.coordinator, self.down, view.marks, view.joiners())

    def _inject(self, spec: FaultSpec, view: JobView) -> None:
        self._emit("fault_due", trial=view.trial.id, fault=spec.id)
        begin = view.now()
        try:
            injection: Injection[Any] = Injection(
                self._there(), self._aim(spec, view), self._known(view), spec.args, spec.seed, workers(spec, view),
                view.checkpoints, self._emit,
            )  # fmt: skip
            self._refuse_what_clashes(spec, injection.nodes)
            evidence = spec.fault.inject(injection)
        except (ClusterError, SpecError, OSError) as error:
            self._refuse(spec, view, str(error))
            return
        finally:
            self._let_go(view)
        about = {"trial": view.trial.id, "fault": spec.id, "kind": spec.kind, "target": list(injection.nodes)}
        more = {"phase": spec.phase, "args": dict(spec.args), "inject_t": evidence.get("t", begin)}
        more |= {"evidence": evidence, "heal_after_s": spec.seconds, "traits_sha256": spec.fault.digest(spec.args)}
        self._emit("fault_begin", **about, **more)
        self._at_work[spec.id] = AtWork(spec, view.trial.id, injection)
        if spec.fault.ends == "node":
            self._power(injection.nodes, view.trial.id, on=False)

    def _refuse_what_clashes(self, spec: FaultSpec, nodes: Collection[str]) -> None:
        """Two faults that hold the same thing would heal each other.

        Raises:
            SpecError: names the one that is at work.
        """
        for other in self._at_work.values():
            if clash((spec, nodes), (other.spec, other.injection.nodes)):
                raise SpecError(f"{other.spec.id} {other.spec.kind} holds the same thing, and is not healed yet")

    def _let_go(self, view: JobView) -> None:
        """Whoever stands still at a phase goes on."""
        if view.control:
            (view.control / "hold.json").unlink(missing_ok=True)
            self._publish(view.control / "hold.json")

    def _there(self) -> Cluster:
        if self._cluster is None:
            raise ClusterError("the cluster is not up yet")
        return self._cluster

    def _publish(self, file: Path) -> None:
        """Have the ranks see it, where they cannot look into the harness' folder."""
        if self._cluster:
            self._cluster.publish(file)

    def _power(self, nodes: Collection[str], trial: str, *, on: bool) -> None:
        """Nodes go down or come back: the node agent starts their processes again only where there is power."""
        self.down = frozenset(self.down) - set(nodes) if on else frozenset(self.down) | set(nodes)
        for node in nodes:
            self._emit("node_up" if on else "node_down", trial=trial, node=node)

    def _heal(self, fault: str) -> None:
        if (it := self._at_work.pop(fault, None)) is None:  # it had been refused
            return
        begun_t = it.injection.cluster.now()
        about = {"trial": it.trial, "fault": fault, "kind": it.spec.kind, "begun_t": begun_t}
        try:
            found = it.spec.fault.heal(it.injection)
        except (ClusterError, SpecError, OSError) as error:  # of whatever kind: the rest is to be healed
            self._emit("fault_end", **about, healed=False, evidence={"error": str(error)})
            self._broken.append(it)
            return
        self._emit("fault_end", **about, healed=True, evidence=found)
        if it.spec.fault.ends == "node":
            off = {node for other in self._at_work.values() if other.spec.fault.ends == "node"
                   for node in other.injection.nodes}  # fmt: skip
            self._power([node for node in it.injection.nodes if node not in off], it.trial, on=True)

    def _refuse(self, spec: FaultSpec, view: JobView, why: str) -> None:
        self._let_go(view)
        self._emit("fault_refused", trial=view.trial.id, fault=spec.id, kind=spec.kind, phase=spec.phase, why=why)
