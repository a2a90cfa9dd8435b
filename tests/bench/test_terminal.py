"""What others wrote is printed as it is: no markup, no emoji, no control characters."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from proving_ground.bench.terminal import SHOWN, Terminal

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:33 [/]"


def printed(it: object, **options: object) -> str:
    out = io.StringIO()
    Terminal(file=out, width=200, **options).print(it)
    return out.getvalue()


@pytest.mark.parametrize("text", [GLOO, "[red]x[/red]", "[/nothing]", ":smile:", "a [b] c"])
def test_foreign_text_is_no_markup(text: str) -> None:
    table = Table("[head]")
    table.add_row(text)
    assert text in printed(text)
    assert text in printed(Text(text))
    assert text in printed(table)


def test_control_characters_do_nothing() -> None:
    assert printed(Text("a\x1b[2Jb\x07\x9bc")) == f"a{SHOWN}[2Jb{SHOWN}c\n"
    assert "\x1b[1m" in printed(Text("bold", "bold"), force_terminal=True), "styles are still shown"
