"""A terminal on which text is what it is: nothing in it is markup, an emoji's name or a control character.

Much of what is printed was written by others: errors of libraries, lines of a trainer, names in a suite. Called by
everything that prints with colours or in columns: `bench`, `chaos`, `reports`, `monitoring`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # all but the end of a line
SHOWN = "\N{REPLACEMENT CHARACTER}"


class Terminal(Console):
    """rich's console without a meaning of its own for text; colours come from styles, never from the text."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - rich's own, handed on
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, without control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=CONTROL.sub(SHOWN, segment.text))
