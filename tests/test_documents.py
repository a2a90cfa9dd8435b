"""Documents are tested: their links resolve, the commands in them exist, every suite and workload is described."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean

import pytest

from proving_ground.__main__ import NAMES
from proving_ground.bench.cli import COMMANDS, parser
from proving_ground.bench.spec import suite_names
from proving_ground.bench.workloads import WORKLOADS
from proving_ground.chaos.cli import parser as chaos_parser
from proving_ground.chaos.faults import FAULTS
from proving_ground.chaos.spec import suite_names as chaos_suite_names
from proving_ground.infra import commands as infra_commands
from proving_ground.loop.cli import parser as loop_parser
from proving_ground.loop.cli import spelled as loop_spelled
from proving_ground.monitoring.cli import parser as monitoring_parser
from proving_ground.reports import arguments as reports_arguments
from proving_ground.reports import cli as reports_cli
from proving_ground.search.cli import parser as search_parser
from proving_ground.serving.cli import parser as serving_parser
from proving_ground.training.__main__ import parser as training_parser

ROOT = Path(__file__).parent.parent
SKIPPED = {".venv", ".nox", "build", "runs", "node_modules", ".git"}
DOCUMENTS = sorted(path for path in ROOT.rglob("*.md") if not SKIPPED & set(path.relative_to(ROOT).parts))
LINK = re.compile(r"\[[^]]*\]\(([^)#\s]+)(?:#[^)]*)?\)|<(?:img|source)[^>]*(?:src|srcset)=\"([^\"]+)\"")
GENERATED = re.compile(r"<!-- measured:.*?<!-- end -->", re.DOTALL)
COMMAND = re.compile(r"^\s*(?:\$ )?(pg bench .*)$", re.MULTILINE)
CHAOS_COMMAND = re.compile(r"^\s*(?:\$ )?(pg chaos .*)$", re.MULTILINE)
MONITORING_COMMAND = re.compile(r"^\s*(?:\$ )?(pg monitoring .*)$", re.MULTILINE)
SERVING_COMMAND = re.compile(r"^\s*(?:\$ )?(pg serving .*)$", re.MULTILINE)
OTHER_COMMANDS = re.compile(r"^\s*(?:\$ )?(pg (?!bench|chaos|monitoring|serving)\w.*)$", re.MULTILINE)
PARSERS: Mapping[str, Callable[[], argparse.ArgumentParser]] = {
    "bench": parser, "chaos": chaos_parser, "monitoring": monitoring_parser, "serving": serving_parser,
    "search": search_parser, "training": training_parser, "infra": infra_commands._parser,
}  # fmt: skip
SESSION = re.compile(r"nox -s ([a-z-]+)")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_resolve(document: Path) -> None:
    targets = [one or other for one, other in LINK.findall(document.read_text())]
    local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_bench_commands_can_be_typed(document: Path) -> None:
    for command in COMMAND.findall(document.read_text()):
        words = shlex.split(command.replace("…", ""), comments=True)[2:]
        known = [word for word in words if word in COMMANDS]
        assert known, f"{relative(document)}: {command}"
        if not {"-h", "--help"} & set(words):
            parser().parse_args(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_chaos_commands_can_be_typed(document: Path) -> None:
    for command in CHAOS_COMMAND.findall(document.read_text()):
        words = shlex.split(command.replace("…", ""), comments=True)[2:]
        if len(words) > 1 or words[0] == "list":  # else it names a command in passing
            chaos_parser().parse_args(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_monitoring_commands_can_be_typed(document: Path) -> None:
    for command in MONITORING_COMMAND.findall(document.read_text()):
        words = [word.strip("[]") for word in shlex.split(command.replace("…", ""), comments=True)[2:]]
        monitoring_parser().parse_args([word for word in words if word])


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_serving_commands_can_be_typed(document: Path) -> None:
    for command in SERVING_COMMAND.findall(document.read_text()):
        serving_parser().parse_args(shlex.split(command, comments=True)[2:])


def typed(program: str, words: list[str]) -> None:
    """Have a program's own parser read what stands behind its name; what it refuses it says, and ends."""
    if program == "reports":
        given = reports_cli.command_first(words)
        own = given[:1] and given[0] in reports_arguments.COMMANDS
        (reports_arguments.parser() if own else reports_cli.parser()).parse_args(given)
    elif program == "loop":
        loop_parser().parse_args(loop_spelled(words))
    else:
        PARSERS[program]().parse_args(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_commands_of_the_other_programs_can_be_typed(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in OTHER_COMMANDS.findall(document.read_text()):
        _, *words = shlex.split(re.sub(r"\|[^\]]*\]|[…\[\]]|\s&&.*|\s{3,}[^-#\s].*", "", command), comments=True)
        assert words[0] in NAMES, f"{relative(document)}: {command}"
        program, words = NAMES[words[0]], words[1:]
        with contextlib.suppress(SystemExit):
            typed(program, ["1" if it in ("PRICE", "H") else it for it in words])
        assert not (said := capsys.readouterr().err), f"{relative(document)}: {command}: {said}"


def test_a_command_with_a_slip_is_seen() -> None:
    """The mutant, of each program: an option that there is not."""
    for words in (
        "reports latest", "reports compare a b", "search run", "loop run dev", "loop dev", "infra check dev",
        "training plan", "bench list", "chaos list", "monitoring metrics", "serving check digits",
    ):  # fmt: skip
        program, *rest = words.split()
        typed(program, rest)
        with pytest.raises(SystemExit) as refused:
            typed(program, [*rest, "--no-such-option"])
        assert refused.value.code == 2


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_sessions_exist(document: Path) -> None:
    sessions = set(re.findall(r"^def ([a-z_]+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    named = set(re.findall(r"@nox\.session\([^)]*name=\"([a-z-]+)\"", (ROOT / "noxfile.py").read_text()))
    assert {name for name in SESSION.findall(document.read_text()) if name not in sessions | named} == set()


def test_what_the_page_on_the_api_says_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"(?:^    .*\n|^\n)+", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    read, do = [textwrap.dedent(block) for block in blocks if "import" in block]
    known = {"Path": lambda _: tmp_path}
    exec(do, known)  # noqa: S102 - our own page
    exec(read.replace("from pathlib import Path\n", "").replace('"scaling")', '"smoke")'), known)  # noqa: S102
    assert "completed pass" in capsys.readouterr().out


def test_every_folder_has_a_readme() -> None:
    folders = [path for path in ROOT.iterdir() if (path / "__init__.py").exists() and path.name != "tests"]
    assert [relative(path) for path in folders if not (path / "README.md").exists()] == []


def test_suites_and_workloads_are_described() -> None:
    text = (ROOT / "bench" / "README.md").read_text()
    assert [name for name in [*suite_names(), *WORKLOADS] if f"`{name}`" not in text] == []


def test_faults_and_chaos_suites_are_described() -> None:
    text = (ROOT / "chaos" / "README.md").read_text()
    assert [name for name in [*FAULTS, *chaos_suite_names()] if f"| `{name}` |" not in text] == []


def test_the_repository_names_no_registry_and_no_machine() -> None:
    words = ["pypi." + "org", "files.pythonhosted" + ".org", "download.pytorch" + ".org", "/work" + "/main"]
    texts = {path: path.read_text(errors="replace") for path in [*ROOT.glob("*.t*"), *DOCUMENTS, *ROOT.glob("*.py")]}
    assert [(relative(path), word) for path, text in texts.items() for word in words if word in text] == []


def test_the_readme_is_read_in_a_minute() -> None:
    text = (ROOT / "README.md").read_text()
    lines = text.splitlines()
    assert len(lines) <= 100
    pictures = re.findall(r"!\[(.*?)\]", text)
    assert ["pass" in it for it in pictures] == [True, True]  # side by side: how it scales, and how it recovers
    assert sum(line.startswith("- **") for line in lines) == 3  # numbers, each with its way to the values
    assert "Pulumi" in "\n".join(lines[:10]), "what stands a cluster up"
    assert len(re.findall(r"\*\*[a-z]+\*\*", text[text.index("Ten words: ") :], flags=re.IGNORECASE)) == 10
    suite = re.search(r"^    title = .*?(?=^\S)", text, re.DOTALL | re.MULTILINE)
    assert suite
    assert len(suite[0].strip().splitlines()) <= 10, "a trainer of one's own in ten lines"


def test_lines_fit_an_editor() -> None:
    """Tables and what is typed or drawn aside; generated parts too."""
    texts = {relative(it): GENERATED.sub("", it.read_text()) for it in DOCUMENTS}
    lines = [(name, line) for name, text in texts.items() for line in text.splitlines()]
    assert [it for it in lines if len(it[1]) > 120 and not it[1].startswith(("|", "    "))] == []


def sentence_lengths(text: str) -> list[int]:
    """Words of each sentence of a page; code, tables, drawings and titles aside, a literal counts as one word."""
    text = re.sub(r"```.*?```", "", GENERATED.sub("", text), flags=re.DOTALL)
    prose = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ", "#")))
    prose = re.sub(r"^\s*(?:[-*]|\d+\.) |\n\s*\n", ". ", prose, flags=re.MULTILINE)  # an item is a sentence
    prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", prose))
    counts = [len(re.findall(r"\w+", sentence)) for sentence in re.split(r"(?<=[.!?])\s+", prose)]
    return [count for count in counts if count > 2]


def test_sentences_are_short_on_average() -> None:
    lengths = {relative(it): sentence_lengths(it.read_text()) for it in DOCUMENTS}
    assert {name: round(mean(each), 1) for name, each in lengths.items() if each and mean(each) > 20} == {}


def test_a_page_of_long_sentences_is_found() -> None:
    long = " ".join(["word"] * 30) + "."
    assert sentence_lengths(f"# Title\n\n{long}\n- {long}\n\n| {long} |\n\n    {long}\n") == [30, 30]
