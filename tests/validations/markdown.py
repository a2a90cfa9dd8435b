"""The little Markdown that the tables of the documents use, as data for a page: tables, lists, paragraphs.

Called by `pages`: so a page shows the very words and numbers that the documents have.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from proving_ground.reports import layout

INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^]]+)]\([^)]*\)")


@dataclass(frozen=True)
class Block:
    """A table with heads, `True` where a column is of numbers; a list; or a paragraph of one row with one cell."""

    kind: str  # table, list, text
    rows: list[list[Markup]]
    heads: tuple[Markup, ...] = ()
    numeric: tuple[bool, ...] = ()


def blocks(text: str) -> Iterator[Block]:
    """What a text consists of."""
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = part.splitlines()
        bullets = next((at for at, line in enumerate(lines) if line.startswith("- ")), len(lines))
        if lines[0].startswith("|"):
            yield table(lines)
            continue
        if before := lines[:bullets]:
            yield Block("text", [[inline(" ".join(before))]])
        if after := lines[bullets:]:
            items = re.split(r"\n- ", "\n" + "\n".join(after))[1:]
            yield Block("list", [[inline(" ".join(it.split()))] for it in items])


def table(lines: list[str]) -> Block:
    """A table of pipes; the second line says which columns are of numbers. A head without words gets one."""
    heads, marks, *rows = [[it.strip() for it in line.strip().strip("|").split("|")] for line in lines]
    named = [it or ("note" if at else "what") for at, it in enumerate(heads)]
    return Block("table", [[*map(inline, row)] for row in rows], tuple(map(inline, named)),
                 tuple(it.endswith(":") for it in marks))  # fmt: skip


def inline(text: str) -> Markup:
    """Code and bold as HTML; of a link its words, since it leads from the document and not from the page."""

    def made(found: re.Match[str]) -> str:
        code, bold, link = found.groups()
        return f"<code>{code}</code>" if code else f"<b>{bold}</b>" if bold else str(link)

    safe = html.escape(str(layout.keep_together(text)), quote=False)
    return Markup(INLINE.sub(made, safe))  # noqa: S704 - escaped a moment ago
