"""What the documents quote is what the programs say: a message that was reworded takes its help along."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from proving_ground.reports import verdicts
from proving_ground.reports.recovery.words import OUTCOMES

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "bench", "chaos", "reports", "monitoring", "search", "serving", "training", "infra", "loop", "proving_ground",
)  # fmt: skip
THEIRS = {
    "0 of 4 pods run: Unschedulable": "Kubernetes says the second part",
    "cannot create resource": "Kubernetes says it",
    "measured on another machine": "the project's own validations, no program",
}
"""Quoted messages that other programs say at least a part of → who."""
FIRST_COLUMN = re.compile(r"^\| (.*?) \|", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b(?:n?\d+(?:\.\d+)?|unknown)\b")  # a number, a node, or a verdict


def quoted(document: Path) -> Iterator[str]:
    """What stands in quotation marks in the first column of a document's tables."""
    for cell in FIRST_COLUMN.findall(document.read_text()):
        yield from re.findall(r'"([^"]+)"', cell)


@cache
def said() -> str:
    """The constant text of all strings of the product, each part of an f-string by itself."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings: nobody is told those
    told = (node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in alone)
    return "\n".join(it for it in told if isinstance(it, str))


def unknown_part(message: str, text: str) -> str:
    """The first part of a message between its numbers and names that no program says; empty where all are."""
    if " " not in message:
        return "" if message in OUTCOMES or message == verdicts.UNKNOWN else message
    parts = [it.strip() for it in PLACEHOLDER.split(message)]
    whole = [it for it in parts if " " in it] or [it for it in parts if len(it) > 2]
    return next((it for it in whole if it not in text), "")


MESSAGES = sorted({it for it in quoted(ROOT / "docs" / "troubleshooting.md") if it not in THEIRS})


def test_there_is_something_to_look_for() -> None:
    assert len(MESSAGES) > 12


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_explained_is_one_that_is_said(message: str) -> None:
    assert not unknown_part(message, said())


def test_a_message_that_was_reworded_is_found() -> None:
    text = "no first step within \nsteps\nrecorded \nmeasured on another machine ("
    assert not unknown_part("no first step within 60 s", text)
    assert unknown_part("no first step after 60 s", text) == "no first step after"
    assert unknown_part("lame", text) == "lame"
    assert unknown_part("n2.0 saved 0 of 60 steps", text) == "saved"


LONGEST = 25  # words; what a terminal says is read at a glance
MATCHED = re.compile(r"\w\|\w|\(\?P?|\\[bdsw.]")  # a pattern: nobody reads it


def spoken(tree: ast.AST) -> Iterator[str]:
    """All strings of a module but docstrings and patterns, what a program fills in as one word."""
    aside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    aside |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in aside:
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        found = "".join(str(it.value) if isinstance(it, ast.Constant) else "X" for it in parts)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            yield "" if MATCHED.search(found) else found


def longest(tree: ast.AST) -> str:
    """The longest sentence of a module's strings; a half between semicolons or colons is one."""
    found = [it for text in spoken(tree) for it in re.split(r"(?<=[.;:!?])\s+|\n", text)]
    return max(found, key=lambda it: len(it.split()), default="")


@pytest.mark.parametrize("folder", FOLDERS)
def test_sentences_of_the_terminal_and_of_pages_are_short(folder: str) -> None:
    found = {file: longest(ast.parse(file.read_text())) for file in (ROOT / folder).rglob("*.py")}
    assert {str(file): it for file, it in found.items() if len(it.split()) > LONGEST} == {}


def test_a_long_sentence_is_found() -> None:
    words = " ".join(["word"] * 20)
    tree = ast.parse(
        f'"""{words} {words} more"""\nPATTERN = r"{words} {words} a|b"\nprint(f"{words} {{1}} {words}. No.")'
    )
    assert len(longest(tree).split()) == 41
