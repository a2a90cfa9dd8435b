"""Nodes that an engine loses by its own means: what all families of such faults have. Called by `pods` and `batch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from proving_ground.bench.capabilities import CanLoseControl, CanSignal, KnowsMachines
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError
from proving_ground.chaos.faults.fault import Evidence, Injection
from proving_ground.chaos.faults.processes import running
from proving_ground.chaos.faults.proof import Condition, killed

LOOK_S = 0.1
NODE_GONE_S = 60.0  # a node may use the notice that it is given, and its machine may be slow
BACK_S = 180.0  # for a machine to boot, or a control plane to start


class SeesNodes(KnowsMachines, CanSignal, Protocol):
    """A cluster that sees both what its engine has as a node and what runs there."""


def take(
    scene: Injection[SeesNodes],
    deed: Callable[[Evidence], None],
    gone_s: Callable[[], float] = lambda: NODE_GONE_S,
    look_s: float = LOOK_S,
) -> Evidence:
    """Do it to every node; over when the engine and the agents' silence say that they are gone, `gone_s` at most."""
    before, killed_there = there(scene), running(scene)
    t = scene.cluster.now()
    for it in before:
        deed(it)
    deadline = t + gone_s()
    while (left := still(scene, before)) and scene.cluster.now() < deadline:
        scene.cluster.sleep(look_s)
    return {"t": t, "gone_t": scene.cluster.now(), "killed": killed_there, "members": before, "left": left}


def there(scene: Injection[KnowsMachines]) -> list[Evidence]:
    """What the engine has as the nodes that are aimed at.

    Raises:
        ClusterError: it has nothing as one of them.
    """
    found = known(scene)
    if absent := [it["node"] for it in found if not it["id"]]:
        raise ClusterError(f"{', '.join(absent)}: the engine has nothing there just now")
    return found


def known(scene: Injection[KnowsMachines]) -> list[Evidence]:
    """The same, where there may be nothing."""
    return [dict(scene.can.machine(node)) for node in scene.nodes]


def still(scene: Injection[KnowsMachines], before: Sequence[Evidence]) -> list[Evidence]:
    """Those that are still there: the same by its id, or an agent that still answers."""
    pairs = zip(before, known(scene), strict=True)
    return [now for was, now in pairs if now["id"] == was["id"] or (now["agent"] and now["agent"] == was["agent"])]


def undo(scene: Injection[object], key: str, deed: Callable[[str], None]) -> list[str]:
    """Undo what was done to each machine in `scene.state[key]`; one leaves the list only once that is done.

    Raises:
        ClusterError: some refused; the others are undone all the same.
    """
    held, undone, failed = scene.state.get(key, []), [], []
    for where in list(held):
        try:
            deed(where)
        except (ClusterError, SpecError, OSError) as why:
            failed.append(f"{where}: {why}")
        else:
            held.remove(where)
            undone.append(where)
    if failed:
        raise ClusterError("; ".join(failed))
    return undone


def regain(scene: Injection[CanLoseControl]) -> bool:
    """Wait until the control plane, which was started again, answers; whether it does."""
    deadline = scene.cluster.now() + BACK_S
    answers: bool = scene.can.controlled()
    while not answers and scene.cluster.now() < deadline:
        scene.cluster.sleep(LOOK_S)
        answers = scene.can.controlled()
    return answers


HIT = (
    Condition("begin.members.*.node", "among", "target", means="it was of a node that was aimed at"),
    Condition("begin.members.*.id", "some", means="the engine had something as that node"),
)
TAKEN = (*killed(), *HIT)
