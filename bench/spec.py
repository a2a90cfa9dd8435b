"""What to measure, as frozen data read from a suite file (TOML); unknown keys are errors.

Called by `bench.__main__`; `bench.plan` turns a Suite into Trials. Errors are for the person who wrote the file.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.matrix import MatrixError, expand

SUITES = Path(__file__).parent / "suites"
SCALINGS = ("weak", "strong")
MAX_NODES = 64  # namespaces on one machine; beyond that the host is what is measured


class SpecError(ValueError):
    """The caller's mistake: one line that says what, where, and what is allowed. Exit status 2."""


@dataclass(frozen=True)
class Case:
    """One workload at the suite's node counts. Batches are in samples a step."""

    name: str
    workload: str
    steps: int
    estimated_step_s: float  # for the time left only; never a figure
    batch_per_node: int | None = None  # weak scaling: each node's share stays
    global_batch: int | None = None  # strong scaling: the whole stays
    warmup_steps: int = 2  # run, not measured
    repeats: int | None = None  # None: the suite's
    link_mbps: float | None = None  # both directions of every node; None: not limited
    dilation: float = 1.0  # paced compute: time runs so many times slower, compute and links alike
    cpus_per_node: float | None = None  # None: for real compute, an equal share of this machine's cores
    efficiency_min: Mapping[str, float] = field(default_factory=dict)  # node count → bar for weak scaling, 0 to 1
    training: Mapping[str, Any] = field(default_factory=dict)  # keys of the trainer's config
    command: Mapping[str, Any] = field(default_factory=dict)  # workload "command": argv, env, pattern
    mechanism: str = ""  # how the job gets over failures (`bench.mechanisms`); empty: not at all
    min_nodes: int | None = None  # the fewest that go on when others are lost; None: all are needed
    faults: tuple[Mapping[str, Any], ...] = ()  # what is broken, in this order (`chaos/README.md`)
    twins: tuple[int, ...] = ()  # node counts of undisturbed trials to compare with
    apart: bool = False  # each fault in a job of its own: one that is not got over does not keep the next from its turn
    patience_s: float = 90.0  # for a job to be steady again after a fault was healed
    instead: tuple[Mapping[str, Any], ...] = ()  # keys to change where this takes too long, in the order to try them
    peer: bool = False  # what others' recovery does, set beside ours: what it fails at is no failure of the run


@dataclass(frozen=True)
class Suite:
    """A suite file, with the command line's overrides."""

    name: str
    title: str
    nodes: tuple[int, ...]
    cases: tuple[Case, ...]
    repeats: int = 3
    seed: int = 1
    disk_mb: int = 256  # of each node
    volume_mb: int | None = None  # of a volume that all nodes share; None: none is needed
    predict_from: tuple[int, ...] = ()  # measured first, alone; the other sizes are predicted from them before they run
    predict_repeats: int = 2  # of that first block
    monitor: bool = False  # the real Prometheus and Alertmanager beside it (`monitoring/README.md`)
    monitor_factor: float | None = None  # the alert rules' durations are divided by it; None: by monitoring's own
    calibrate: bool = False  # measure the host first, and refuse trials that would measure it again
    faithful: bool = False  # let that calibration decide links, dilation and what is dropped (`bench.faithful`)
    limit_s: float | None = None  # then: seconds that the trials may take


@dataclass(frozen=True)
class Trial:
    """One measurement: one case at one size, once. `bench/README.md` explains the fields."""

    id: str
    case: str
    workload: str
    scaling: tuple[str, ...]
    nodes: int
    repeat: int
    seed: int
    batch_per_node: int
    global_batch: int
    steps: int
    warmup_steps: int
    link_mbps: float | None = None  # as it runs: a case's rate, divided by its dilation
    dilation: float = 1.0
    cpus_per_node: float | None = None
    neighbours: bool = False
    compute: str = "real"
    profile: Mapping[str, str] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    command: Mapping[str, Any] = field(default_factory=dict)
    efficiency_min: float | None = None
    bound: Mapping[str, Any] | None = None
    mechanism: str = ""
    min_nodes: int | None = None
    faults: tuple[Mapping[str, Any], ...] = ()
    patience_s: float = 90.0
    peer: bool = False
    twin_of: str = ""  # the case with faults that this undisturbed trial is compared with
    role: str = ""  # of an undisturbed trial: twin, replay or reference (`bench/README.md`)
    replays: str = ""  # the trial whose lineage a replay makes again
    seeded: bool = False  # of a replay or reference: random numbers follow from step and rank, as in a live job
    block: str = ""  # a: for the fit of a prediction; b: all sizes, after it; empty: nothing is predicted
    label: str = "emulated"
    imitated: tuple[str, ...] = ()
    estimate_s: float = 0.0


def suite_names() -> list[str]:
    """The suites that ship with the project."""
    return sorted(path.stem for path in SUITES.glob("*.toml"))


def load_suite(name: str) -> Suite:
    """The suite called `name`, or the one in the file `name`.

    Raises:
        SpecError: no such suite, not TOML, an unknown or missing key, a value of nonsense.
    """
    path = Path(name) if name.endswith(".toml") else SUITES / f"{name}.toml"
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SpecError(f"no suite {name!r}; allowed: {', '.join(suite_names())}, or a .toml file") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: {error}") from None
    return suite_from(document, where=path.name, name=path.stem)


def suite_from(document: Mapping[str, Any], *, where: str, name: str) -> Suite:
    """A checked Suite from a TOML or JSON document; `where` names it in errors."""
    cases = document.get("case", document.get("cases", []))
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise SpecError(f"{where}: case must be written as [[case]]")
    cases = [*cases, *(cells(document["matrix"], where) if "matrix" in document else ())]
    if not cases:
        raise SpecError(f"{where}: needs at least one [[case]], or a [matrix]")
    built = tuple(build(Case, case, f"{where}: case {number}") for number, case in enumerate(cases, 1))
    rest = {key: value for key, value in document.items() if key not in ("case", "cases", "matrix")}
    suite: Suite = build(Suite, {"name": name, **rest, "cases": built}, where)
    check_suite(suite, where)
    return suite


def cells(table: object, where: str) -> list[dict[str, Any]]:
    """The cases of a suite's [matrix].

    Raises:
        SpecError: it is none.
    """
    try:
        return expand(table)
    except MatrixError as error:
        raise SpecError(f"{where}: matrix: {error}") from None


def build(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:  # noqa: ANN401 - one of two dataclasses
    """An instance of a dataclass from a table, with every key and type checked.

    Raises:
        SpecError: an unknown key, a missing key, a value of the wrong type.
    """
    fields = {item.name: item for item in dataclasses.fields(kind)}
    for key in table:
        if key not in fields:
            raise SpecError(f"{where}: unknown key {key!r}; allowed: {', '.join(fields)}")
    required = [name for name, item in fields.items() if item.default is item.default_factory is dataclasses.MISSING]
    for key in required:
        if key not in table:
            raise SpecError(f"{where}: key {key!r} is missing")
    return kind(**{key: typed(value, str(fields[key].type), f"{where}: {key}") for key, value in table.items()})


KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "bool": ((bool,), "true or false"),
    "float": ((int, float), "a number"),
    "tuple": ((list, tuple), "a list"),
    "Mapping": ((dict,), "a table"),
}


def typed(value: Any, annotation: str, where: str) -> Any:  # noqa: ANN401 - any TOML value
    """The value, if it is of the annotated type (lists become tuples); SpecError otherwise."""
    if value is None and annotation.endswith("| None"):
        return None
    kind, words = KINDS[re.split(r"\W", annotation, maxsplit=1)[0]]
    if not isinstance(value, kind) or isinstance(value, bool) is not (bool in kind):
        raise SpecError(f"{where}: must be {words}, not {value!r}")
    return tuple(value) if isinstance(value, list) else value


def check_suite(suite: Suite, where: str) -> None:
    """Refuse what makes no sense.

    Raises:
        SpecError: with the key, its value and what is allowed.
    """
    check_nodes(suite.nodes, where)
    check_prediction(suite, where)
    within(suite.repeats, 1, 1000, f"{where}: repeats")
    within(suite.disk_mb, 1, 1_000_000, f"{where}: disk_mb")
    if suite.monitor_factor is not None:
        within(suite.monitor_factor, 1, 1000, f"{where}: monitor_factor")
    if suite.faithful and not suite.calibrate:
        raise SpecError(f"{where}: faithful = true: needs calibrate = true")
    if suite.limit_s is not None:
        within(suite.limit_s, 1, 1_000_000, f"{where}: limit_s")
    names = [case.name for case in suite.cases]
    if len(set(names)) != len(names):
        raise SpecError(f"{where}: two cases have the same name; names: {', '.join(names)}")
    for case in suite.cases:
        check_case(case, f"{where}: case {case.name!r}")


def check_prediction(suite: Suite, where: str) -> None:
    """A fit needs two sizes at least, of those that are measured."""
    if not suite.predict_from:
        return
    check_nodes(suite.predict_from, f"{where}: predict_from")
    if len(suite.predict_from) < 2:
        raise SpecError(f"{where}: predict_from: {list(suite.predict_from)}: a fit needs two sizes, such as [1, 2]")
    within(suite.predict_repeats, 1, 1000, f"{where}: predict_repeats")


def check_nodes(nodes: Sequence[object], where: str) -> None:
    """Node counts: whole numbers from 1 to 64, ascending, none twice."""
    allowed = f"allowed: ascending whole numbers from 1 to {MAX_NODES}, such as 1,2,4,8"
    whole = [count for count in nodes if isinstance(count, int) and not isinstance(count, bool)]
    if not nodes or len(whole) != len(nodes) or min(whole) < 1 or max(whole) > MAX_NODES:
        raise SpecError(f"{where}: nodes: {list(nodes)}; {allowed}")
    if whole != sorted(set(whole)):
        raise SpecError(f"{where}: nodes: {whole} are not ascending or one is there twice; {allowed}")


def check_case(case: Case, where: str) -> None:
    """One case's numbers."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", case.name):
        raise SpecError(f"{where}: name: small letters, digits and hyphens only")
    if case.batch_per_node is None and case.global_batch is None:
        raise SpecError(f"{where}: needs batch_per_node (weak scaling), global_batch (strong scaling) or both")
    within(case.steps, 1, 10_000_000, f"{where}: steps")
    within(case.warmup_steps, 0, case.steps - 1, f"{where}: warmup_steps")
    within(case.repeats or 1, 1, 1000, f"{where}: repeats")
    within(case.estimated_step_s, 0, 3600, f"{where}: estimated_step_s")
    within(case.dilation, 0.001, 1000, f"{where}: dilation")
    within(case.patience_s, 1, 3600, f"{where}: patience_s")
    for key, low, high in (("batch_per_node", 1, 1e9), ("global_batch", 1, 1e9), ("link_mbps", 1, 400_000)):
        if getattr(case, key) is not None:
            within(getattr(case, key), low, high, f"{where}: {key}")
    if case.cpus_per_node is not None:
        within(case.cpus_per_node, 0.01, 1024, f"{where}: cpus_per_node")
    for number, table in enumerate(case.instead, 1):
        if not isinstance(table, Mapping):
            raise SpecError(f"{where}: instead: {table!r} must be a table")
        check_case(variant(case, table, f"{where}: instead {number}"), f"{where}: instead {number}")
    for count, bar in case.efficiency_min.items():
        if not count.isdecimal():
            raise SpecError(f"{where}: efficiency_min: {count!r} is no node count")
        within(typed(bar, "float", f"{where}: efficiency_min"), 0, 1, f"{where}: efficiency_min of {count} nodes")


def variant(case: Case, table: Mapping[str, Any], where: str = "instead") -> Case:
    """The case with the keys of one of its `instead`.

    Raises:
        SpecError: an unknown key or a value of the wrong type.
    """
    made: Case = build(Case, {**dataclasses.asdict(case), "instead": (), **table}, where)
    return made


def within(value: float, low: float, high: float, where: str) -> None:
    """Refuse a number outside of its range."""
    if not low <= value <= high:
        raise SpecError(f"{where}: {value} is out of range; allowed: {low:g} to {high:g}")


def parse_nodes(text: str) -> tuple[int, ...]:
    """`1,2,4` from a command line.

    Raises:
        SpecError: not a list of ascending node counts.
    """
    parts = text.split(",")
    counts = [int(part) if part.strip().isdecimal() else part for part in parts]
    check_nodes(counts, "--nodes")
    return tuple(int(count) for count in counts)


def as_document(suite: Suite) -> dict[str, Any]:
    """The suite as plain data, readable again by `suite_from`."""
    return dataclasses.asdict(suite)
