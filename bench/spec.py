"""What to measure, as frozen data read from a suite file (TOML); unknown keys are errors.

Called by `bench.cli`; `bench.plan` turns a Suite into Trials. Errors are for the person who wrote the file.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from proving_ground.bench.matrix import MatrixError, expand
from proving_ground.training import typed
from proving_ground.training.typed import ConfigError, Rule

SUITES = Path(__file__).parent / "suites"
SCALINGS = ("weak", "strong")
MAX_NODES = 64  # namespaces on one machine; beyond that the host is what is measured

T = TypeVar("T")


class SpecError(ConfigError):
    """The caller's mistake: one line that says what, where, and what is allowed. Exit status 2."""


NodeCount = Annotated[int, Rule(least=1, most=MAX_NODES)]
Batch = Annotated[int, Rule(least=1, most=1e9)]  # samples of a step
Repeats = Annotated[int, Rule(least=1, most=1000)]
Megabytes = Annotated[int, Rule(least=1, most=1_000_000)]
CaseName = Annotated[str, Rule(pattern="[a-z0-9][a-z0-9-]{0,63}", words="at most 64 small letters, digits and hyphens")]
SuiteName = Annotated[  # a folder is called so; `latest` is a link beside the suites' folders
    str, Rule(pattern=r"(?!latest$)\w[\w.-]{0,63}", words="at most 64 letters, digits and . _ -, and not 'latest'")
]
Line = Annotated[str, Rule(pattern=r"[^\x00-\x1f\x7f-\x9f]{0,200}", words="one line of at most 200 characters")]
MetricName = Annotated[str, Rule(pattern=r"[A-Za-z][\w@/.-]{0,63}", words="a metric, such as accuracy")]
Bar = Annotated[float, Rule(least=-1e9, most=1e9)]
CountWord = Annotated[str, Rule(pattern="[1-9][0-9]?", words="a node count, such as 4")]
Share = Annotated[float, Rule(least=0, most=1)]
LinkMbps = Annotated[float, Rule(least=1, most=400_000)]
Dilation = Annotated[float, Rule(least=0.001, most=1000)]
Cores = Annotated[float, Rule(least=0.01, most=1024)]
Patience = Annotated[float, Rule(least=1, most=3600)]  # seconds
Startup = Annotated[float, Rule(least=1, most=86_400)]  # seconds
Factor = Annotated[float, Rule(least=1, most=1000)]


@dataclass(frozen=True)
class Case:
    """One workload at the suite's node counts. Batches are in samples a step."""

    name: CaseName
    workload: str
    steps: Annotated[int, Rule(least=1, most=10_000_000)]
    estimated_step_s: Annotated[float, Rule(least=0, most=3600)]  # for the time left only; never a figure
    batch_per_node: Batch | None = None  # weak scaling: each node's share stays
    global_batch: Batch | None = None  # strong scaling: the whole stays
    warmup_steps: Annotated[int, Rule(least=0)] = 2  # run, not measured
    ranks_per_node: Annotated[int, Rule(least=1, most=64)] = 1  # processes of the job on each node: one a GPU, say
    repeats: Repeats | None = None  # None: the suite's
    link_mbps: LinkMbps | None = None  # both directions of every node; None: not limited
    dilation: Dilation = 1.0  # paced compute: time runs so many times slower, compute and links alike
    cpus_per_node: Cores | None = None  # None: for real compute, an equal share of this machine's cores
    efficiency_min: Mapping[CountWord, Share] = field(default_factory=dict)  # node count → bar for weak scaling
    quality_min: Mapping[MetricName, Bar] = field(default_factory=dict)  # metric → bar for the trained model
    training: Mapping[str, Any] = field(default_factory=dict)  # keys of the trainer's config
    command: Mapping[str, Any] = field(default_factory=dict)  # workload "command": argv, env, pattern
    mechanism: str = ""  # how the job gets over failures (`bench.mechanisms`); empty: not at all
    min_nodes: NodeCount | None = None  # the fewest that go on when others are lost; None: all are needed
    faults: tuple[Mapping[str, Any], ...] = ()  # what is broken, in this order (`chaos/README.md`)
    random: Mapping[str, Any] = field(default_factory=dict)  # in place of faults: how to draw them (`chaos.chance`)
    drawn: Mapping[str, Any] = field(default_factory=dict)  # how its faults were drawn; written by `chaos`
    twins: tuple[NodeCount, ...] = ()  # node counts of undisturbed trials to compare with
    apart: bool = False  # each fault in a job of its own: one that is not got over does not keep the next from its turn
    patience_s: Patience | None = None  # for a job to be steady again after a fault; None: `startup_s`, 30 s, its steps
    instead: tuple[Mapping[str, Any], ...] = ()  # keys to change where this takes too long, in the order to try them
    startup_s: Startup = 60.0  # until the first step: imports, data sets, compilation
    silence_s: Startup = 60.0  # without a step for so long, a trial has failed: an evaluation, say, may take longer
    neighbours: bool = True  # idle nodes train by themselves, so that the cores are equally busy at every size
    peer: bool = False  # what others' recovery does, set beside ours: what it fails at is no failure of the run


@dataclass(frozen=True)
class Suite:
    """A suite file, with the command line's overrides."""

    name: SuiteName
    title: Line
    nodes: tuple[NodeCount, ...]
    cases: tuple[Case, ...]
    repeats: Repeats = 3
    seed: Annotated[int, Rule(least=0, most=2**31 - 1)] = 1
    spare_nodes: Annotated[int, Rule(least=0, most=8)] = 0  # idle at the largest size too, to tell the machine's pace
    disk_mb: Megabytes = 256  # of each node
    volume_mb: Megabytes | None = None  # of a volume that all nodes share; None: none is needed
    predict_from: tuple[NodeCount, ...] = ()  # measured first, alone; the other sizes are predicted before they run
    predict_repeats: Repeats = 2  # of that first block
    monitor: bool = False  # the real Prometheus and Alertmanager beside it (`monitoring/README.md`)
    monitor_factor: Factor | None = None  # the alert rules' durations are divided by it; None: by monitoring's own
    calibrate: bool = False  # measure the host first, and refuse trials that would measure it again
    faithful: bool = False  # let that calibration decide links, dilation and what is dropped (`bench.faithful`)
    limit_s: Annotated[float, Rule(least=1, most=1_000_000)] | None = None  # seconds that the trials may take
    decide: bool = False  # what its repeats leave undecided gets what is left of `limit_s` (`bench.further`)


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
    ranks_per_node: int = 1
    link_mbps: float | None = None  # as it runs: a case's rate, divided by its dilation
    dilation: float = 1.0
    cpus_per_node: float | None = None
    neighbours: bool = False
    compute: str = "real"
    profile: Mapping[str, str] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    command: Mapping[str, Any] = field(default_factory=dict)
    efficiency_min: float | None = None
    quality_min: Mapping[str, float] = field(default_factory=dict)
    bound: Mapping[str, Any] | None = None
    mechanism: str = ""
    min_nodes: int | None = None
    faults: tuple[Mapping[str, Any], ...] = ()
    drawn: Mapping[str, Any] = field(default_factory=dict)  # how the faults were drawn; empty: they were written down
    patience_s: float = 90.0
    startup_s: float = 60.0
    silence_s: float = 60.0
    peer: bool = False
    twin_of: str = ""  # the case with faults that this undisturbed trial is compared with
    role: str = ""  # of an undisturbed trial: twin, replay or reference (`chaos/README.md`)
    replays: str = ""  # the trial whose lineage a replay makes again
    seeded: bool = False  # of a replay or reference: random numbers follow from step and rank, as in a live job
    block: str = ""  # a: for the fit of a prediction; b: all sizes, after it; empty: nothing is predicted
    label: str = "emulated"
    imitated: tuple[str, ...] = ()
    estimate_s: float = 0.0

    @property
    def ranks(self) -> int:
        """Processes of the job, on all nodes."""
        return self.nodes * self.ranks_per_node


def suite_names() -> list[str]:
    """The suites that ship with the project."""
    return sorted(path.stem for path in SUITES.glob("*.toml"))


def load_suite(name: str) -> Suite:
    """The suite called `name`, or the one in the file `name`.

    Raises:
        SpecError: no such suite, not TOML, an unknown or missing key, a value of nonsense.
    """
    path, document = suite_file(name, SUITES)
    try:
        return suite_from(document, where=path.name, name=path.stem)
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply") from None
    except ConfigError:
        raise
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None


def suite_file(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file of the suite called `name` in this folder, or the file `name`; and what it holds.

    Raises:
        SpecError: no such suite, or not TOML.
    """
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    try:
        return path, tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SpecError(no_suite(name, sorted(it.stem for it in folder.glob("*.toml")))) from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: {error}") from None


def no_suite(name: str, known: Sequence[str], what: str = "suite") -> str:
    """That there is no such suite, those that ship, and which one may have been meant."""
    if name.endswith(".toml"):
        return f"no {what} {name!r}: there is no such file"
    return typed.unknown(what, name, [*known, "FILE.toml"])


def suite_from(document: Mapping[str, Any], *, where: str, name: str) -> Suite:
    """A checked Suite from a TOML or JSON document; `where` names it in errors."""
    if "case" in document and "cases" in document:
        raise SpecError(f"{where}: has case and cases; a suite's cases are written as [[case]]")
    cases = document.get("case", document.get("cases", []))
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise SpecError(f"{where}: case must be written as [[case]]")
    cases = [*cases, *(cells(document["matrix"], where) if "matrix" in document else ())]
    if not cases:
        raise SpecError(f"{where}: needs at least one [[case]], or a [matrix]")
    built = tuple(build(Case, case, f"{where}: case {number}") for number, case in enumerate(cases, 1))
    rest = {key: value for key, value in document.items() if key not in ("case", "cases", "matrix")}
    return check_suite(build(Suite, {"name": name, **rest, "cases": built}, where), where)


def cells(table: object, where: str) -> list[dict[str, Any]]:
    """The cases of a suite's [matrix].

    Raises:
        SpecError: it is none.
    """
    try:
        return expand(table)
    except MatrixError as error:
        raise SpecError(f"{where}: matrix: {error}") from None


def build(kind: type[T], table: object, where: str) -> T:
    """An instance of a dataclass from a table, with every key, type and range checked.

    Raises:
        SpecError: one line with the first thing that is wrong.
    """
    try:
        return typed.read(kind, table, where)
    except ConfigError as error:
        raise SpecError(str(error)) from None


def check_suite(suite: Suite, where: str) -> Suite:
    """The same suite, read once more (a command line may have changed it), with what its keys say together.

    Raises:
        SpecError: with the key, its value and what is allowed.
    """
    suite = build(Suite, dataclasses.asdict(suite), where)
    check_nodes(suite.nodes, f"{where}: nodes")
    if suite.predict_from:
        check_nodes(suite.predict_from, f"{where}: predict_from", least=2)
    if suite.faithful and not suite.calibrate:
        raise SpecError(f"{where}: faithful = true: needs calibrate = true")
    if suite.decide and suite.limit_s is None:
        raise SpecError(f"{where}: decide = true: needs limit_s, the seconds that the trials may take")
    names = [case.name for case in suite.cases]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(f"{where}: two cases have the same name: {', '.join(twice)}")
    for case in suite.cases:
        check_case(case, f"{where}: case {case.name!r}")
    return suite


def check_nodes(nodes: Sequence[int], where: str, least: int = 1) -> None:
    """Node counts: ascending, none twice, and at least so many."""
    if len(nodes) < least or list(nodes) != sorted(set(nodes)):
        raise SpecError(
            f"{where} = {typed.shown(list(nodes))}: must be {least} or more node counts, ascending, such as [1, 2]"
        )


def check_case(case: Case, where: str) -> None:
    """What the keys of one case say together."""
    if case.batch_per_node is None and case.global_batch is None:
        raise SpecError(f"{where}: needs batch_per_node (weak scaling), global_batch (strong scaling) or both")
    within(case.warmup_steps, 0, case.steps - 1, f"{where}: warmup_steps")
    for number, table in enumerate(case.instead, 1):
        check_case(variant(case, table, f"{where}: instead {number}"), f"{where}: instead {number}")


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
    counts = tuple(int(part) for part in parts if re.fullmatch(r"\s*[0-9]{1,4}\s*", part))
    if len(counts) < len(parts) or not all(1 <= count <= MAX_NODES for count in counts):
        raise SpecError(f"--nodes {typed.shown(text)}: must be node counts from 1 to {MAX_NODES}, such as 1,2,4,8")
    check_nodes(counts, "--nodes")
    return counts


def as_document(suite: Suite) -> dict[str, Any]:
    """The suite as plain data, readable again by `suite_from`."""
    return dataclasses.asdict(suite)
