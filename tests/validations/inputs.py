"""Commands with mistakes in them, and recorded files that somebody damaged: `python -m tests.validations inputs`.

Commands are called on recorded runs, and on the fake cluster, with something changed at random (a seed each): words of
the command line dropped, doubled, misspelt or made extreme, or one of the files that it reads damaged, as a document or
in its bytes; half of these runs are sealed anew, so that the damage is met behind the seal too. Whatever comes has to
end with a status that the programs know, without a traceback, in time, and a mistake of the caller in lines of at most
300 characters. Suites have a validation of their own (`suites`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from proving_ground.bench import clusters, rundir
from proving_ground.bench import commands as bench_commands
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.start import MAINS
from proving_ground.chaos import commands as chaos_commands
from proving_ground.search import commands as search_commands
from proving_ground.search import watch as search_watch
from proving_ground.training import loop as training_loop
from proving_ground.training.device import batch as training_batch
from tests.reports.faked import ProfiledCluster, case, faked, suite
from tests.reports.recovery import synthetic
from tests.reports.synthetic import Knobs, make
from tests.search import recorded as searches
from tests.validations.simulation import several
from tests.validations.sitting import MEASURED, Document, Pace, State, keep, load, origin
from tests.validations.suites import DEEP, EXTREME, LINE, MUTATIONS, HangError, damaged, places, within

FILE = MEASURED / "inputs.json"
COMMAND = "nox -s validate -- inputs"
COUNT = 10_000
BLOCK = 50  # mutants that a process does before it tells
LIMIT_S = 60.0  # of processor time, for one command
STATUSES = (0, 1, 2, 130)
ROUND = len("monitoring availability: ; help: pg monitoring availability --help")  # what stands round a message
KINDS = ("traceback", "hang", "long message", "odd status", "no message")

# What is called: the run that it reads stands in it, `fake` clusters stand for real ones, and nothing is started.
LINES = (
    "bench list", "bench list --json", "bench doctor --cluster fake", "bench plan --suite smoke --cluster fake",
    "bench plan --suite smoke --cluster fake --json --price-per-node-hour 2", "bench logs faked",
    "bench run --from faked --cluster fake --no-report --quiet", "bench run --resume faked --no-report --quiet",
    "bench calibrate --nodes 2 --cluster fake", "bench prune --keep 3", "bench prune --keep 1 --dry-run --json",
    "chaos list --cluster fake", "chaos plan --suite smoke --cluster fake --trials 2",
    "chaos plan --suite kill --case worker --cluster fake --random 5 --seed 3",
    "chaos run --suite smoke --cluster fake --quiet", "chaos run --suite smoke --cluster fake --random 3 --json",
    "chaos replay smoke f01 --cluster fake --quiet", "chaos shrink smoke --cluster fake --budget 2 --quiet",
    "reports faked --no-html", "reports faked --no-html --json --strict", "reports kill --no-html",
    "reports kill --no-html --price-per-node-hour 3", "reports scaling", "reports compare faked scaling",
    "reports compare faked faked --json", "reports index", "reports trend --suite faked", "reports advise faked",
    "reports check scaling --that throughput>=1", "reports check kill --require limits.toml", "reports junit kill",
    "reports forecast kill", "reports forecast kill --json", "monitoring metrics", "monitoring alerts",
    "monitoring advice faked", "monitoring availability kill", "monitoring openmetrics kill",
    "monitoring openmetrics faked", "monitoring live kill", "monitoring trace faked --out trace.json",
    "monitoring dashboards --out boards",
    "search list", "search report made", "search list --json", "loop plan dev --hours 2", "loop status",
    "infra check local", "infra cost dev", "infra cost dev --json",
    "training plan --set model=vit --ranks 2 --memory 16GiB", "training plan --config train.toml --json",
    "training run --config train.toml --set steps=2", "training batch --config train.toml --most 64 --json",
    "serving register faked --name made", "serving check none", "serving load none --users 2 --seconds 3 --json",
    "serving serve none --replicas 2", "bench clean --cluster fake", "bench clean --cluster fake --dry-run --json",
    "reports compare faked faked --html difference.html", "monitoring check", "monitoring check limits.toml",
    "search run --suite smoke --quiet", "search run --suite smoke --seed 3 --json", "search resume made --quiet",
)  # fmt: skip
"""Not there: `monitoring track` and `export`, which wait for servers, and `pg`, which has the words of the others."""
CRASHED = ("Traceback (most recent call last)", "a defect of the report")
LIMITS = 'require = ["goodput >= 0.5"]\n'
TRAINING = 'model = "digits"\nglobal_batch = 32\nsteps = 10\n'
NO_RUNS = ("infra", "training")  # have no --runs: what they need stands in the folder
SAFE = tuple(it for it in EXTREME if it != "/etc/passwd")  # as a word of a command it could be where one writes to


@dataclass
class Found:
    """What some mutants came to."""

    outcomes: Counter[str] = field(default_factory=Counter)  # "bench refused" …
    bad: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Mutant:
    """One command on recorded files: its words, and what was done to which file."""

    words: tuple[str, ...]
    done: str
    file: Path | None = None
    content: bytes = b""
    resealed: bool = False


def record(root: Path) -> None:
    """Runs of benchmarks and chaos, a search, and limits for a gate; each with its results."""
    for seed in range(6):
        faked(root / "runs", suite(case("one"), repeats=2), ProfiledCluster(seed=seed))
    make(root / "runs", Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    synthetic.make(root / "runs")
    call(["chaos", "run", "--suite", "smoke", "--cluster", "fake", "--quiet", "--runs", str(root / "runs")])
    searches.write(root / "runs", searches.three())
    newest = rundir.find(root / "runs", "faked")
    newest.logs.mkdir(exist_ok=True)
    (newest.logs / "t001.n1.0.log").write_text("step 1\nstep 2\n")
    rundir.seal(newest, complete=True)
    (root / "limits.toml").write_text(LIMITS)
    (root / "train.toml").write_text(TRAINING)
    for name in ("faked", "scaling", "kill"):
        call(["reports", name, "--no-html", "--runs", str(root / "runs")])


def files(root: Path) -> list[Path]:
    """Everything that was recorded, in order."""
    return sorted(it for it in root.rglob("*") if it.is_file() and not it.is_symlink())


@contextlib.contextmanager
def as_recorded(root: Path, kept: Mapping[Path, bytes]) -> Iterator[None]:
    """Afterwards all files and links are as they were, and no other is left."""
    links = {it: it.readlink() for it in root.rglob("*") if it.is_symlink()}
    try:
        yield
    finally:
        for file in (it for it in root.rglob("*") if it.is_symlink() or it.is_file()):
            if file not in kept or file.is_symlink():
                file.unlink()
        for link, target in links.items():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        for file, content in kept.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.is_file() or file.read_bytes() != content:
                file.write_bytes(content)


def drop(chance: random.Random, words: list[str]) -> None:
    """A word less."""
    del words[chance.randrange(len(words))]


def double(chance: random.Random, words: list[str]) -> None:
    """A word twice."""
    at = chance.randrange(len(words))
    words.insert(at, words[at])


def swap(chance: random.Random, words: list[str]) -> None:
    """Two words change places."""
    one, other = chance.randrange(len(words)), chance.randrange(len(words))
    words[one], words[other] = words[other], words[one]


def misspell(chance: random.Random, words: list[str]) -> None:
    """A letter less, or one more."""
    at = chance.randrange(len(words))
    place = chance.randrange(len(words[at]) + 1)
    words[at] = words[at][:place] + chance.choice(["", "x", "-", "=", "ä", "\x1b"]) + words[at][place + 1 :]


def replace(chance: random.Random, words: list[str]) -> None:
    """Something extreme in a word's place."""
    words[chance.randrange(len(words))] = extreme(chance)


def add(chance: random.Random, words: list[str]) -> None:
    """An option or a word more, of this or any other command."""
    others = sorted({it for line in LINES for it in line.split()})
    words.insert(chance.randrange(len(words) + 1), chance.choice([extreme(chance), *chance.sample(others, 6)]))


def extreme(chance: random.Random) -> str:
    """A value at which somebody may stumble, as a word."""
    value = str(chance.choice(SAFE)).replace("\0", "\\0")  # no command line has a NUL
    return value[:6000]


WORDS: tuple[Callable[[random.Random, list[str]], None], ...] = (drop, double, swap, misspell, replace, replace, add)


def mutant(seed: int, kept: Mapping[Path, bytes]) -> Mutant:
    """What is called for a seed, and on what."""
    chance = random.Random(f"inputs {seed}")  # noqa: S311 - to be repeated, not secret
    words = chance.choice(LINES).split()
    if chance.random() < 0.4:
        done = []
        rest = words[1:]
        for _ in range(chance.choice([1, 1, 2, 3])):
            if rest:
                how = chance.choice(WORDS)
                how(chance, rest)
                done.append(how.__name__)
        return Mutant((words[0], *rest), ", ".join(done))
    file = chance.choice(sorted(it for it in kept if it.suffix in (".json", ".jsonl", ".toml", ".log")))
    content, how_ = changed(chance, file, kept[file])
    return Mutant(tuple(words), f"{file.name}: {how_}", file, content, resealed=chance.random() < 0.5)


def changed(chance: random.Random, file: Path, content: bytes) -> tuple[bytes, str]:
    """The file's content with something wrong, and what."""
    text = content.decode(errors="replace")
    if chance.random() < 0.15 or not text:
        return (damaged(chance, text) if text else "{").encode(errors="replace"), "characters"
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 30 * DEEP))
    try:
        if file.suffix == ".json":
            document = [json.loads(text)]
            how = altered(chance, document)
            return json.dumps(document[0]).encode(errors="replace"), how
        if file.suffix == ".jsonl":
            return lines_changed(chance, text)
    finally:
        sys.setrecursionlimit(limit)
    return damaged(chance, text).encode(errors="replace"), "characters"


def altered(chance: random.Random, holder: list[Any]) -> str:
    """One to three changes of a document, which stands in a list; what was done."""
    done = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        found = list(places(holder))
        if found:
            how, at = chance.choice(MUTATIONS), chance.choice(found[1:] or found)
            if at != (0,) or how.__name__ in ("extreme", "retype"):
                how(chance, holder, at)
                done.append(f"{how.__name__} {'.'.join(map(str, at[1:]))}"[:100])
    return ", ".join(done) or "nothing"


def lines_changed(chance: random.Random, text: str) -> tuple[bytes, str]:
    """Lines of records: one lost, doubled, moved, cut off or changed within."""
    lines = text.splitlines()
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    what = chance.choice(["lost", "doubled", "moved", "cut", "value", "value", "value", "rest lost"])
    if what == "lost":
        del lines[at]
    elif what == "doubled":
        lines.insert(other, lines[at])
    elif what == "moved":
        lines.insert(other, lines.pop(at))
    elif what == "cut":
        lines[at] = lines[at][: len(lines[at]) // 2]
    elif what == "rest lost":
        del lines[at:]
    else:
        holder = [json.loads(lines[at])]
        what = altered(chance, holder)
        lines[at] = json.dumps(holder[0])
    return ("\n".join(lines) + "\n").encode(errors="replace"), f"line {at + 1} {what}"


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """What processes of a command's own say goes nowhere."""
    kept = [os.dup(1), os.dup(2)]
    with Path(os.devnull).open("wb") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
        try:
            yield
        finally:
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
                os.close(before)


def call(words: Sequence[str]) -> tuple[int, str, str]:
    """(status, stdout, stderr) of one command, in this process."""
    program, out, err = words[0], io.StringIO(), io.StringIO()
    module = importlib.import_module(f"proving_ground.{program}.{'__main__' if program in MAINS else 'cli'}")
    with silent(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = module.main(list(words[1:]))
        except SystemExit as left:  # argparse's way out
            status = left.code if isinstance(left.code, int) else 2
    return status, out.getvalue(), err.getvalue()


def outcome(words: Sequence[str], limit_s: float = LIMIT_S) -> tuple[str, str]:
    """(done, failed, refused, or what was wrong with it; in words) of one command."""
    try:
        with within(limit_s):
            status, out, err = call(words)
    except HangError:
        return "hang", f"more than {limit_s:g} s"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - that none comes is what is asked
        return "traceback", f"{type(error).__name__}: {error}"[:LINE]
    return judged(status, out, err)


def judged(status: int, out: str, err: str) -> tuple[str, str]:
    """The same of a command that came back."""
    if any(it in out + err for it in CRASHED):
        return "traceback", (out + err)[-LINE:]
    if status not in STATUSES:
        return "odd status", f"{status}: {err}"[:LINE]
    if status != 2:
        return ("done" if status == 0 else "failed"), ""
    message = [it for it in err.splitlines() if not it.startswith(("usage: ", " "))]
    longest = max(message, key=len, default="")
    if not message:
        return "no message", out[-LINE:]
    return ("long message", longest[:LINE]) if len(longest) > LINE + ROUND else ("refused", "")


def one(it: Mutant, root: Path) -> tuple[str, str]:
    """What one mutant comes to; the files are as they were afterwards."""
    if it.file:
        it.file.write_bytes(it.content)
        folder = it.file.parent
        while it.resealed and folder != root and not (folder / "seal.json").exists():
            folder = folder.parent
        if it.resealed and folder != root and it.file.name != "seal.json" and (folder / "spec.json").exists():
            with contextlib.suppress(Exception):  # what cannot be sealed keeps its broken seal
                rundir.seal(rundir.RunDir(folder), complete=True)
    return outcome([*it.words, *(() if it.words[0] in NO_RUNS else ("--runs", str(root / "runs")))])


@contextlib.contextmanager
def nothing_started() -> Iterator[None]:
    """Meanwhile this machine has no nodes but the fake cluster's, reports are made in this process, nothing trains."""
    with (
        patch.object(clusters, "LocalCluster", FakeCluster), patch.dict(clusters.CLUSTERS, local=FakeCluster),
        patch.object(bench_commands, "report", made_by("proving_ground.reports.cli")),
        patch.object(chaos_commands, "report", made_by("proving_ground.reports.cli")),
        patch.object(search_commands, "report_of", made_by("proving_ground.search.report")),
        patch.object(search_watch, "run", lambda it, *_: searches.carry_out(it, searches.three())),
        patch.object(training_loop, "train", lambda *_: SimpleNamespace(reason="done")),
        patch.object(training_batch, "find", lambda *_, **__: None),
    ):  # fmt: skip
        yield


def made_by(module: str) -> Callable[[rundir.RunDir, argparse.Namespace], int]:
    """As `bench.runner.report` and `search.commands.report_of`, where a traceback is seen and what it says is heard."""

    def made(store: rundir.RunDir, options: argparse.Namespace) -> int:
        words = [str(store.path), *(f"--{it}" for it in ("quiet", "json") if getattr(options, it, False))]
        return int(importlib.import_module(module).main(words))

    return made


def block(it: tuple[Path, int, int]) -> Found:
    """So many mutants of what was recorded in a folder, from a first seed on."""
    recorded, first, count = it
    found, before = Found(), Path.cwd()
    with tempfile.TemporaryDirectory() as made:
        root = Path(made, *"abcdef")  # deep: what leads out of it by `..` stays in the folder made for it
        shutil.copytree(recorded, root, symlinks=True)
        os.chdir(root)
        try:
            kept = {file: file.read_bytes() for file in files(root)}
            for seed in range(first, first + count):
                changed_ = mutant(seed, kept)
                with as_recorded(root, kept), nothing_started():
                    what, why = one(changed_, root)
                found.outcomes[f"{changed_.words[0]} {what}"] += 1
                if what in KINDS:
                    line = " ".join(changed_.words)[:LINE]
                    found.bad.append({"seed": seed, "line": line, "what": what, "why": why, "mutant": changed_.done})
        finally:
            os.chdir(before)
    return found


@contextlib.contextmanager
def all_recorded() -> Iterator[Path]:
    """A folder with all that the commands read."""
    with tempfile.TemporaryDirectory() as made:
        record(Path(made))
        yield Path(made)


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 where a command did not end as it has to."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations inputs", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help=f"in all, earlier sittings included ({COUNT:,})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: as many as cores)")
    parser.add_argument("--seed", type=int, help="only this mutant, and what comes of it")
    options = parser.parse_args(argv)
    if options.seed is not None:
        with all_recorded() as recorded:
            found = block((recorded, options.seed, 1))
        print(dict(found.outcomes), *(json.dumps(it, ensure_ascii=False) for it in found.bad), sep="\n")
        return int(bool(found.bad))
    return sitting(load(FILE, COMMAND, state, anywhere=True), options.count, options.jobs)


def sitting(document: Document, count: int, jobs: int) -> int:
    """Up to so many mutants in all, from where the sitting before ended."""
    cell = document["cells"].setdefault("inputs", {"count": 0, "outcomes": {}, "bad": [], "sittings": []})
    cell["sittings"].append({"from": cell["count"], **origin()})
    before, pace = cell["count"], Pace(count - cell["count"])
    with all_recorded() as recorded, several(jobs) as each:
        blocks = [(recorded, first, min(BLOCK, count - first)) for first in range(before, count, BLOCK)]
        for found in each(block, blocks):
            cell["count"] += sum(found.outcomes.values())
            cell["outcomes"] = dict(Counter(cell["outcomes"]) + found.outcomes)
            cell["bad"] += found.bad
            keep(FILE, document)
            if left := pace.left(cell["count"] - before):
                print(f"{cell['count']:,} of {count:,} commands, {len(cell['bad'])} bad · {left}", flush=True)
    for it in cell["bad"]:
        print(f"seed {it['seed']}: {it['what']}: {it['line']}: {it['why']} ({it['mutant']})")
    return int(bool(cell["bad"]))


def programs(cell: Mapping[str, Any]) -> list[str]:
    """The programs that were called, in order of their lines."""
    return [it for it in dict.fromkeys(line.split()[0] for line in LINES) if any(
        name.startswith(f"{it} ") for name in cell["outcomes"])]  # fmt: skip


def table(document: Mapping[str, Any]) -> str:
    """What came of the commands, by program."""
    cell = document["cells"]["inputs"]
    rows = ["| program | commands | done | failed | refused | bad |", "|---|--:|--:|--:|--:|--:|"]
    for program in programs(cell):
        counts = {name.split(" ", 1)[1]: n for name, n in cell["outcomes"].items() if name.startswith(f"{program} ")}
        said = [counts.get(it, 0) for it in ("done", "failed", "refused")]
        bad = sum(counts.get(it, 0) for it in KINDS)
        rows.append(f"| `{program}` | {sum(counts.values()):,} | {' | '.join(f'{it:,}' for it in (*said, bad))} |")
    return "\n".join(rows) + "\n"


def state(document: Mapping[str, Any]) -> State:
    """How far it is."""
    cell = document["cells"].get("inputs", {"count": 0, "bad": []})
    return State(cell["count"], COUNT, "commands", len(cell["bad"]))
