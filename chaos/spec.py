"""The faults of a suite as checked, frozen data. Called by `chaos.commands`, the schedule and the nemesis."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from proving_ground.bench.jobstate import STEADY_STEPS, STEPS_KEPT
from proving_ground.bench.spec import Case, SpecError, Suite, build, load_suite, no_suite
from proving_ground.chaos.faults import FAULTS, Fault
from proving_ground.chaos.targets import View, by_mark, is_joiner, resolve
from proving_ground.training.phases import PHASES
from proving_ground.training.typed import Rule, unknown

SUITES = Path(__file__).parent / "suites"
RECOVERY = "recovery"
AFTER_STEPS = STEADY_STEPS
EVERYWHERE = {"partitions", "volume", "power", "api", "requeue", "slurmctld"}
"""Abilities that a fault holds on more than the nodes that it is aimed at."""
THROUGH = {
    "slurmctld": {"operator", "requeue", "preempt", "time_limit", "slurmd", "power"},
    "api": {"pods", "eviction", "machines", "all_pods", "quotas", "webhooks", "containers", "power"},
}
"""Ability that takes an engine's control plane away → those that work through it: without it nobody can heal them."""

FaultId = Annotated[str, Rule(pattern=r"[\w-]{0,32}", words="at most 32 letters, digits and hyphens")]
Phase = Annotated[str, Rule(one_of=("", RECOVERY, *PHASES))]
Steps = Annotated[int, Rule(least=0, most=STEPS_KEPT)]
Hold = Annotated[float, Rule(least=0, most=600)]  # seconds
Overlap = Annotated[float, Rule(least=0, most=60)]  # seconds: later the fault before had its time to be got over
Moment = Annotated[float, Rule(least=0, most=86_400)]  # seconds
WAYS = ("after_steps", "after_s", "at_s", "phase")
"""Keys that say when a fault comes; of the first three it has one at most, and a phase beside the first only."""


@dataclass(frozen=True)
class FaultSpec:
    """One fault that is to be done; `chaos/README.md` explains the keys."""

    kind: str
    id: FaultId = ""
    seed: Annotated[int, Rule(least=0)] = 0
    target: str = ""  # empty: the kind's own
    phase: Phase = ""  # empty: between two steps, whichever it is
    after_steps: Steps | None = None  # None: the usual ones, where nothing else says when
    after_s: Overlap | None = None  # it overlaps: so long after the fault before was in, whatever the job does
    at_s: Moment | None = None  # so long after the job was steady for the first time, whatever it does then
    hold_s: Hold | None = None
    args: Mapping[str, float] = field(default_factory=dict)

    @property
    def fault(self) -> Fault:
        """What its kind does."""
        return FAULTS[self.kind]

    @property
    def where(self) -> str:
        """Its target."""
        return self.target or self.fault.target

    @property
    def steps(self) -> int:
        """Steps at full strength that it waits for, and that tell whether it is got over."""
        return AFTER_STEPS if self.after_steps is None else self.after_steps

    @property
    def whatever(self) -> bool:
        """Whether it comes at its time, whatever the job does then."""
        return self.after_s is not None or self.at_s is not None

    @property
    def seconds(self) -> float:
        """How long it is held before it is healed."""
        return self.fault.hold_s if self.hold_s is None else self.hold_s


def faults_of(tables: Sequence[Mapping[str, Any]], where: str) -> list[FaultSpec]:
    """The faults of a case, checked.

    Raises:
        SpecError: an unknown key, kind or phase, or a number out of range.
    """
    return [checked(build(FaultSpec, one_target(table), at), at) for at, table in located(tables, where)]


def one_target(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table with a list of targets as one."""
    several = table.get("target")
    listed = isinstance(several, list | tuple) and several and all(isinstance(it, str) for it in several)
    return {**table, "target": "+".join(several)} if listed and several else table


def located(tables: Sequence[Mapping[str, Any]], where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Each fault's table with its place in words."""
    return [(f"{where}: fault {number}", table) for number, table in enumerate(tables, 1)]


def checked(spec: FaultSpec, where: str) -> FaultSpec:
    """The same, if it makes sense.

    Raises:
        SpecError: with what is allowed.
    """
    if spec.kind not in FAULTS:
        raise SpecError(f"{where}: {unknown('fault', spec.kind, FAULTS)}")
    said = [key for key in WAYS if getattr(spec, key) not in (None, "")]
    if len(said) > 1 and said != ["after_steps", "phase"]:
        values = (f"{key} = {spec.phase!r}" if key == "phase" else key for key in said)
        raise SpecError(f"{where}: {' and '.join(values)}: a fault has one of them")
    if is_joiner(spec.where) and spec.phase != RECOVERY:
        raise SpecError(f"{where}: target {spec.where!r}: needs phase = {RECOVERY!r}: then only do nodes join")
    return dataclasses.replace(spec, args=spec.fault.with_defaults(spec.args, where))


def clash(one: tuple[FaultSpec, Collection[str]], other: tuple[FaultSpec, Collection[str]]) -> bool:
    """Whether two faults, each with its nodes, hold the same thing: healing one of them would undo the other.

    A control plane is held also by what works through it.
    """
    (mine, here), (its, there) = one, other
    held, too = things(mine), things(its)
    shared = held & too
    return bool(
        shared & EVERYWHERE or (shared and set(here) & set(there)) or cuts_off(held, too) or cuts_off(too, held)
    )


def cuts_off(taken: Collection[str], held: Collection[str]) -> bool:
    """Whether a fault takes the control plane away that another works through."""
    return any(plane in taken and not through.isdisjoint(held) for plane, through in THROUGH.items())


def things(spec: FaultSpec) -> set[str]:
    """What a fault holds until it is healed: abilities of the cluster, or processes that stand still."""
    held = {"volume" if name == "checkpoints" else name for name in spec.fault.needs} - {"signals"}
    return held or ({spec.kind} if spec.fault.ends == "nobody" else set())


def check_suite(suite: Suite) -> None:
    """Refuse what no job can be put through.

    Raises:
        SpecError: no faults, or one that cannot be aimed, or that kills the last node without saying so; a bar for a
            model that is never trained to its end.
    """
    if not any(case.faults or case.random for case in suite.cases):
        raise SpecError(f"suite {suite.name!r} has no faults; `pg bench` runs suites without")
    for case in suite.cases:
        if not case.faults and not case.random:
            raise SpecError(f"case {case.name!r} has no faults; `pg bench` runs cases without")
        if case.quality_min:
            raise SpecError(
                f"case {case.name!r}: quality_min: a job with faults ends once it has got over the last one, before "
                "its model is trained; `pg bench` judges models"
            )
        specs = faults_of(case.faults, f"case {case.name!r}")
        if specs and (after_s := specs[0].after_s) is not None:
            raise SpecError(f"case {case.name!r}: fault 1: after_s = {after_s:g}: there is none before to overlap with")
        check_recoveries(specs[: None if case.apart else 1], f"case {case.name!r}")
        check_order(specs, f"case {case.name!r}")
        for spec in specs:
            for nodes in suite.nodes:
                check_target(case, spec, nodes)


def check_recoveries(firsts: Sequence[FaultSpec], where: str) -> None:
    """Refuse faults that are the first of their job and are to hit a recovery: they would hit the job's own start.

    Raises:
        SpecError: names the first of them.
    """
    for number, spec in enumerate(firsts, 1):
        if spec.phase == RECOVERY:
            raise SpecError(
                f"{where}: fault {number}: phase = {RECOVERY!r}: there is none before it in its job whose recovery it "
                "could hit"
            )


def check_order(specs: Sequence[FaultSpec], where: str) -> None:
    """Refuse faults that say when they come, and not in that order: they are done in the order of the suite.

    Raises:
        SpecError: names the first that comes before one that it stands behind.
    """
    newest_s = 0.0
    for number, spec in enumerate(specs, 1):
        if (at_s := spec.at_s) is not None:
            if at_s < newest_s:
                raise SpecError(f"{where}: fault {number}: at_s = {at_s:g}: one before it comes at {newest_s:g} s")
            newest_s = at_s


def check_target(case: Case, spec: FaultSpec, nodes: int) -> None:
    """Refuse a target that is no node, or all of them where the fault does not say that it means that."""
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    view = View(names, rank0=names[0], coordinator=f"n{nodes + 1}", joiners=names[-1:])
    if by_mark(spec.where):  # `refuse_the_last`, when it is due
        return
    try:
        aimed = resolve(spec.where, view, spec.seed)
    except SpecError as error:
        raise SpecError(f"case {case.name!r}: {spec.kind}: {error}") from None
    try:
        refuse_the_last(spec, aimed, names)
    except SpecError as error:
        raise SpecError(f"case {case.name!r}: {error}") from None


def refuse_the_last(spec: FaultSpec, aimed: Collection[str], names: Collection[str]) -> None:
    """A fault that ends nodes leaves one, unless it says that it means all.

    Raises:
        SpecError: it would not.
    """
    ends_all = spec.fault.ends == "node" and set(aimed) >= set(names)
    if ends_all and not spec.fault.target.startswith("all"):
        raise SpecError(f"{spec.kind} of {spec.where} kills the last node; say `all_nodes` if that is meant")


def suite_names() -> list[str]:
    """The chaos suites that ship with the project."""
    return sorted(path.stem for path in SUITES.glob("*.toml"))


def load(name: str) -> Suite:
    """The suite called `name`, or the one in the file `name`.

    Raises:
        SpecError: there is none, or it makes no sense.
    """
    if name.endswith(".toml"):
        suite = load_suite(name)
    elif name in suite_names():
        suite = load_suite(str(SUITES / f"{name}.toml"))
    else:
        raise SpecError(no_suite(name, suite_names(), "chaos suite"))
    check_suite(suite)
    return suite
