"""The README keeps its word: files, commands and kinds of trouble that it names exist."""

from __future__ import annotations

import re

import pytest

from proving_ground.infra import __main__ as cli
from proving_ground.infra import trouble
from proving_ground.infra.config import ROOT, STACKS

TEXT = (ROOT / "infra" / "README.md").read_text()
SHARED = ("__init__", "place", "facts", "images", "labels", "manifest", "everything")
COMMANDS = sorted(set(re.findall(r"pg infra ([a-z]+)", TEXT)))


def test_every_stack_is_described() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT.partition("## From nothing")[0], re.MULTILINE) == list(STACKS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([command, "--help"])
    assert left.value.code == 0
    assert command in capsys.readouterr().out


def test_every_kind_of_trouble_has_an_entry() -> None:
    entries = set(re.findall(r"^\| `([^`]+)` \|", TEXT.partition("## When it goes wrong")[2], re.MULTILINE))
    assert {item.kind for item in trouble.TROUBLES} <= entries


def test_every_module_is_in_the_table() -> None:
    table = TEXT.partition("## What is where")[2].partition("## How it is tested")[0]
    for file in (ROOT / "infra").glob("*.py"):
        assert file.name.startswith("__") or f"`{file.name}`" in table, file.name
    for folder in ("azure", "cluster"):
        for file in (ROOT / "infra" / folder).glob("*.py"):
            assert file.stem in table or file.stem in SHARED, file
