"""The code's own budgets: sizes of functions, typical sizes of files, and names that say nothing."""

from __future__ import annotations

import ast
import re
import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "infra", "training", "bench", "chaos", "reports", "monitoring", "search", "serving", "loop", "proving_ground",
)  # fmt: skip
MEDIAN_FILE = 150
MAX_FUNCTION, MOST_FUNCTIONS, MEDIAN_FUNCTION = 60, 30, 10
MAX_INFRA_FUNCTION = 40
EMPTY_NAMES = {"util", "utils", "helpers", "common", "manager", "base", "misc"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lines_of_functions(path: Path) -> dict[str, int]:
    """Name → lines of body, without the docstring: what has to be read."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            size = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            found[f"{path.relative_to(ROOT)}:{node.name}"] = size
    return found


def test_a_file_is_as_long_as_its_subject_and_most_are_short() -> None:
    sizes = [len(path.read_text().splitlines()) for path in sources(*FOLDERS, "tests")]
    assert statistics.median(sizes) <= MEDIAN_FILE


def test_functions_are_short() -> None:
    sizes = {name: size for path in sources(*FOLDERS) for name, size in lines_of_functions(path).items()}
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION} == {}
    assert sum(size <= MOST_FUNCTIONS for size in sizes.values()) >= 0.9 * len(sizes)
    assert statistics.median(sizes.values()) <= MEDIAN_FUNCTION


def test_no_function_of_infra_is_longer_than_a_page() -> None:
    sizes = {name: size for path in sources("infra") for name, size in lines_of_functions(path).items()}
    assert {name: size for name, size in sizes.items() if size > MAX_INFRA_FUNCTION} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path in sources(*FOLDERS, "tests") if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_no_name_says_nothing() -> None:
    assert [str(path) for path in sources(*FOLDERS, "tests") if path.stem in EMPTY_NAMES] == []


def test_nothing_prints_text_as_markup() -> None:
    """Gloo's "[…]:33" ended a report: all that prints in colour is a `bench.terminal.Terminal`."""
    own = [path.name for path in sources(*FOLDERS) if re.search(r"rich\.console import .*Console\b", path.read_text())]
    assert own == ["terminal.py"]


def modules() -> dict[str, Path]:
    """Dotted name → file."""
    return {name_of(path): path for path in sources(*FOLDERS)}


def name_of(path: Path) -> str:
    """The dotted name of a module: all are of one package, which its own folder is the root of."""
    folder, *parts = path.relative_to(ROOT).with_suffix("").parts
    folders = [] if folder == "proving_ground" else [folder]
    return ".".join(["proving_ground", *folders, *parts]).removesuffix(".__init__")


def folder_of(name: str) -> str:
    """The folder that a module lies in."""
    return next((it for it in name.split(".")[1:2] if it in FOLDERS), "proving_ground")


def imported(name: str, known: Mapping[str, Path], *, lazily: bool) -> set[str]:
    """The modules of ours that one imports when it is loaded; `lazily`: within its functions too.

    What only a type checker reads is not imported.
    """
    found: set[str] = set()

    def look(node: ast.AST) -> None:
        for it in ast.iter_child_nodes(node):
            if isinstance(it, ast.Import):
                found.update(alias.name for alias in it.names)
            elif isinstance(it, ast.ImportFrom):
                inside = (f"{it.module}.{alias.name}" for alias in it.names)
                found.update(one if one in known else str(it.module) for one in inside)
            elif isinstance(it, ast.If) and "TYPE_CHECKING" in ast.unparse(it.test):
                continue
            elif lazily or not isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef):
                look(it)

    look(ast.parse(known[name].read_text()))
    return (found & known.keys()) - {name}


def beyond(name: str, arrows: Mapping[str, set[str]]) -> set[str]:
    """All that is reached from a name by one arrow or more."""
    found: set[str] = set()
    ahead = list(arrows[name])
    while ahead:
        if (it := ahead.pop()) not in found:
            found.add(it)
            ahead += arrows[it]
    return found


def circles(arrows: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The sets of names from each of which all of the set are reached."""
    reached = {name: beyond(name, arrows) for name in arrows}
    return {frozenset(it for it in reached[name] if name in reached[it]) for name in arrows if name in reached[name]}


def test_a_circle_is_seen() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a"}}
    assert circles(arrows) == {frozenset("bc")}


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    assert circles({name: imported(name, known, lazily=False) for name in known}) == set()


LAZY = (
    {"proving_ground.infra.direct", "proving_ground.infra.exports", "proving_ground.infra.outputs"},
    {"proving_ground.training.recovery.elastic", "proving_ground.training.recovery.launch"},
    {"proving_ground.training.checkpoints.objects", "proving_ground.training.checkpoints.stores"},
    {"proving_ground.training.checkpoints.saving", "proving_ground.training.checkpoints.sharded_saving"},
)
"""Circles that are closed within a function only. None may be added."""


def test_circles_that_functions_close_become_fewer() -> None:
    known = modules()
    assert circles({name: imported(name, known, lazily=True) for name in known}) == set(map(frozenset, LAZY))


def test_no_folder_imports_itself_by_way_of_others() -> None:
    known, arrows = modules(), {folder: set[str]() for folder in FOLDERS}
    del known["proving_ground"]  # loaded with whatever is below it
    for name in known:
        arrows[folder_of(name)] |= {folder_of(it) for it in imported(name, known, lazily=True)}
    assert len(arrows["reports"]) > 1, "it imports others: the test sees arrows"
    assert circles({folder: far - {folder} for folder, far in arrows.items()}) == set()


SEVERAL = {
    "Analysis": 3, "Answer": 2, "Asked": 2, "Bar": 2, "Bucket": 2, "Budget": 3, "Change": 2, "ConfigError": 2,
    "Driver": 2, "Engine": 2, "Evidence": 2, "Fit": 2, "GaveUpError": 2, "Handler": 3, "Job": 4, "Known": 3,
    "Kubectl": 2, "Ledger": 3, "Left": 2, "Line": 2, "Lineage": 2, "Mark": 3, "Member": 2, "Metric": 2, "Network": 3,
    "Noise": 2, "Place": 2, "Pool": 2, "Price": 2, "Progress": 2, "Reading": 3, "Recorder": 2, "Result": 2, "Row": 3,
    "Rule": 3, "Source": 2, "Span": 2, "Spent": 2, "Storage": 2, "Store": 3, "Stretch": 3, "Trial": 2,
    "Wanted": 3, "Watch": 2,
}  # fmt: skip
"""Names that stand for more than one class, and for how many. None may be added; who needs one of them renames it."""


def test_a_class_has_a_name_of_its_own() -> None:
    names = Counter(
        it.name for path in sources(*FOLDERS) for it in ast.walk(ast.parse(path.read_text()))
        if isinstance(it, ast.ClassDef)
    )  # fmt: skip
    assert {name: count for name, count in names.items() if count > 1} == SEVERAL


JSON = {
    "bench.capabilities.CanReachVolume.at_volume", "bench.rundir.RunDir.read", "reports.document.read_document",
    "training.events.parsed", "training.config.from_text", "training.config.value_of",
}  # fmt: skip
"""What one folder has of another that may return any value: what a file holds, or what a key's own type decides."""


def bare(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def untyped(definition: ast.AST, name: str) -> set[str]:
    """The functions and fields of a definition that take or give anything at all."""
    if isinstance(definition, ast.FunctionDef):
        of = definition.args
        taken = [*of.posonlyargs, *of.args, *of.kwonlyargs, *filter(None, (of.vararg, of.kwarg))]
        return {name} if any(map(bare, [definition.returns, *(each.annotation for each in taken)])) else set()
    found = set[str]()
    for it in definition.body if isinstance(definition, ast.ClassDef) else ():
        if isinstance(it, ast.FunctionDef) and not it.name.startswith("_"):
            found |= untyped(it, f"{name}.{it.name}")
        elif isinstance(it, ast.AnnAssign) and bare(it.annotation):
            found.add(f"{name}.{ast.unparse(it.target)}")
    return found


def used_of_others(name: str, known: Mapping[str, Path]) -> set[tuple[str, str]]:
    """(module, name) of what a module uses that another folder defines."""
    tree, modules_of, found = ast.parse(known[name].read_text()), dict[str, str](), set[tuple[str, str]]()
    for it in ast.walk(tree):
        for alias in it.names if isinstance(it, ast.ImportFrom) else ():
            whole = f"{it.module}.{alias.name}"  # type: ignore[attr-defined]  # it is one
            modules_of |= {alias.asname or alias.name: whole} if whole in known else {}
            found |= set() if whole in known else {(str(it.module), alias.name)}  # type: ignore[attr-defined]
    for it in ast.walk(tree):
        if isinstance(it, ast.Attribute) and isinstance(it.value, ast.Name) and it.value.id in modules_of:
            found.add((modules_of[it.value.id], it.attr))
    return {it for it in found if it[0] in known and folder_of(it[0]) != folder_of(name)}


def test_what_one_folder_has_of_another_is_typed() -> None:
    known = modules()
    used = set().union(*(used_of_others(it, known) for it in known))
    parsed = {it: ast.parse(known[it].read_text()) for it in {module for module, _ in used}}
    found = {
        name
        for module, tree in parsed.items() for it in tree.body if isinstance(it, ast.FunctionDef | ast.ClassDef)
        if (module, it.name) in used for name in untyped(it, f"{module.removeprefix('proving_ground.')}.{it.name}")
    }  # fmt: skip
    assert len(used) > 150
    assert found == JSON


def test_what_takes_anything_is_seen() -> None:
    lines = ("x: Any", "def f(self, *, y: Any): ...", "def g(self) -> dict[str, Any]: ...", "def _h(self, z: Any): ...")
    text = "\n  ".join(["class A:", *lines])
    assert untyped(ast.parse(text).body[0], "A") == {"A.x", "A.f"}
    assert untyped(ast.parse("def f(*x: Any): ...").body[0], "f") == {"f"}
