"""Commands with mistakes: a sample of the validation, and that it finds what it looks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from proving_ground.bench import cli, rundir
from proving_ground.training import typed
from tests.validations import inputs
from tests.validations.inputs import KINDS, LINES, Mutant, all_recorded, block, files, main, mutant, one, outcome
from tests.validations.sitting import load

SAMPLE = 60


@pytest.fixture(scope="module")
def recorded() -> Iterator[Path]:
    with all_recorded() as folder:
        yield folder


def test_a_sample_of_commands_ends_as_they_have_to(recorded: Path) -> None:
    found = block((recorded, 0, SAMPLE))
    assert found.bad == []
    assert sum(found.outcomes.values()) == SAMPLE
    assert {it.split()[1] for it in found.outcomes} >= {"done", "refused"}


@pytest.mark.parametrize("line", [
    it for it in LINES if it.split()[0] in ("bench", "chaos", "loop", "infra") and "shrink" not in it  # none failed
])  # fmt: skip
def test_without_a_mistake_a_line_is_done(line: str, recorded: Path) -> None:
    kept = {file: file.read_bytes() for file in files(recorded)}
    with inputs.as_recorded(recorded, kept), inputs.nothing_started():
        assert one(Mutant(tuple(line.split()), ""), recorded) == ("done", "")


def test_the_files_are_as_they_were_afterwards(recorded: Path) -> None:
    before = {file: file.read_bytes() for file in files(recorded)}
    with inputs.as_recorded(recorded, before):
        next(iter(before)).write_text("{")
        (recorded / "runs" / "more.json").write_text("1")
        rundir.seal(rundir.find(recorded / "runs", "faked"), complete=False)
    assert {file: file.read_bytes() for file in files(recorded)} == before


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("raise ValueError('x')", "traceback"),
        ("print('a defect of the report, not of the run: KeyError', file=sys.stderr) or 1", "traceback"),
        ("3", "odd status"),
        ("2", "no message"),
        ("print('bench: ' + 'x' * 400, file=sys.stderr) or 2", "long message"),
        ("print('bench: one line', file=sys.stderr) or 2", "refused"),
    ],
)
def test_what_must_not_be_is_found(how: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, object] = {}
    body = how if how.startswith("raise") else f"return {how}"
    exec(f"import sys\ndef made(words):\n    {body}\n", scope)  # noqa: S102 - a program that goes wrong, as written above
    monkeypatch.setattr(cli, "main", scope["made"])
    assert outcome(["bench", "list"])[0] == what


def test_a_command_that_takes_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(words: list[str]) -> int:
        while words is not None:
            pass
        return 0

    monkeypatch.setattr(cli, "main", spin)
    assert outcome(["bench", "list"], limit_s=0.05)[0] == "hang"


def test_a_reader_that_trusts_what_it_reads_is_found(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("reports", "check", "scaling", "--that", "x" * 400)
    assert one(Mutant(words, ""), recorded)[0] == "refused"
    monkeypatch.setattr(typed, "SHOWN", 10_000)
    monkeypatch.setattr(typed, "LINE", 10_000)
    monkeypatch.setattr("proving_ground.bench.shell.one_line", SimpleNamespace(__call__=str))
    assert one(Mutant(words, ""), recorded)[0] in KINDS


def test_a_mutant_is_the_same_again_and_others_differ(recorded: Path) -> None:
    kept = {file: file.read_bytes() for file in files(recorded)}
    assert mutant(7, kept) == mutant(7, kept)
    made = [mutant(seed, kept) for seed in range(200)]
    assert len({(it.words, it.file, it.content) for it in made}) > 150
    assert {it.file is None for it in made} == {True, False}


def test_a_sitting_goes_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "FILE", tmp_path / "inputs.json")
    seen: list[tuple[int, int]] = []

    def counted(it: tuple[Path, int, int]) -> inputs.Found:
        seen.append(it[1:])
        return inputs.Found(Counter({"bench refused": it[2]}))

    monkeypatch.setattr(inputs, "block", counted)
    monkeypatch.setattr(inputs, "record", lambda root: root.mkdir(exist_ok=True))
    monkeypatch.setattr(inputs, "several", lambda _: nullcontext(map))
    assert main(["--count", "60"]) == 0
    assert main(["--count", "100"]) == 0
    assert seen == [(0, 50), (50, 10), (60, 40)]
    document = load(inputs.FILE, inputs.COMMAND, anywhere=True)
    assert inputs.state(document).done == 100
    assert "| `bench` | 100 | 0 | 0 | 100 | 0 |" in inputs.table(document)
