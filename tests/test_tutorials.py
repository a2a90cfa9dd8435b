"""The suites in the tutorials are taken out of them, planned, and done on the simulated cluster as they stand there."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from proving_ground.bench import cli as bench_cli
from proving_ground.bench import rundir
from proving_ground.chaos import cli as chaos_cli

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("my-trainer.md", "my-first-fault.md")
PROGRAMS: Mapping[str, Callable[[list[str]], int]] = {"bench": bench_cli.main, "chaos": chaos_cli.main}
BLOCK = re.compile(r"((?:^\S.*\n)+)\n((?: {4}.*\n|\n)+)", re.MULTILINE)
"""A paragraph and the text set off below it."""
FILE = re.compile(r"`([\w-]+\.toml)`")
COMMAND = re.compile(r"^ {4}pg (bench|chaos) (plan|run) --suite ([\w-]+\.toml)$", re.MULTILINE)


def suites() -> dict[str, str]:
    """The files that the reader is told to save, with their text."""
    found: dict[str, str] = {}
    for page in PAGES:
        for before, text in BLOCK.findall((DOCS / page).read_text()):
            if text.startswith("    title = "):
                (name,) = FILE.findall(before)
                assert name not in found, f"{page}: {name} stands there twice"
                found[name] = textwrap.dedent(text)
    return found


def commands() -> list[tuple[str, str, str]]:
    """Program, command and file of each line that names such a file."""
    return [it for page in PAGES for it in COMMAND.findall((DOCS / page).read_text())]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files, where the reader is."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    for name, text in suites().items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_suite_of_the_tutorials_is_found_and_is_done_by_a_command() -> None:
    assert set(suites()) == {"mine.toml", "mine-chaos.toml", "hang.toml"}
    assert {name for _, command, name in commands() if command == "run"} == set(suites())


@pytest.mark.parametrize(("program", "name"), sorted({(program, name) for program, _, name in commands()}))
def test_it_is_planned_as_it_stands_there(
    program: str, name: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert PROGRAMS[program](shlex.split(f"plan --suite {name} --cluster fake")) == 0
    assert saved.joinpath(name).read_text().splitlines()[0].startswith("title = ")
    assert " about " in capsys.readouterr().out


@pytest.mark.parametrize(("program", "name"), sorted({(it[0], it[2]) for it in commands() if it[1] == "run"}))
def test_it_is_done_as_it_stands_there(program: str, name: str, saved: Path) -> None:
    """Whole, and every fault was done: none was refused, and none left out. Of phases, simulated ranks tell none."""
    text = (saved / name).read_text()
    (saved / name).write_text(text.replace(', phase = "allreduce"', ""))
    assert PROGRAMS[program](shlex.split(f"run --suite {name} --cluster fake --quiet")) == 0
    run = rundir.find(saved / "runs", name.removesuffix(".toml"))
    assert run.read("seal")["complete"]
    asked = [it for trial in run.read("plan")["trials"] for it in trial["faults"]]
    done = [it for it in rundir.read_history(run) if it["event"] == "fault_begin"]
    assert [it["kind"] for it in done] == [it["kind"] for it in asked]
    assert bool(asked) is (program == "chaos")


def test_a_suite_with_a_slip_is_refused(saved: Path) -> None:
    """The mutant: what a page could come to say."""
    for name, text in suites().items():
        (saved / name).write_text(text.replace("estimated_step_s", "estimated_step"))
        program = "bench" if name == "mine.toml" else "chaos"
        assert PROGRAMS[program](shlex.split(f"plan --suite {name} --cluster fake")) == 2
