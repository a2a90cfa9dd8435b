"""What is wrong with a page as a browser lays it out: found by the boxes of its own texts, whatever page it is.

Used by the browser tests of all pages. Nothing here knows a chart or a section by name: every visible text has a box,
a frame that it must lie in, neighbours that it must not lie on, and a background that it must stand out from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

LEAST_CONTRAST, LARGE_CONTRAST = 4.5, 3.0  # WCAG 2.2, 1.4.3
LEAST_TARGET_PX = 24  # WCAG 2.2, 2.5.8
LEAST_WIDTH = 0.85  # of the window, for a table that does not fit: else it is cut off while there is white beside it

HERE = Path(__file__).parent
PROBLEMS, FIRST_SCREEN = ((HERE / name).read_text() for name in ("geometry.js", "first_screen.js"))


def problems(browser: Any) -> list[str]:
    """Everything that is wrong with the page on show; the window must be as high as the page (`test_browser.show`)."""
    return list(browser.execute_script(PROBLEMS, LEAST_CONTRAST, LARGE_CONTRAST, LEAST_TARGET_PX, LEAST_WIDTH))


def first_screen(browser: Any) -> dict[str, Any]:
    """Lines of the headline, where the first chart ends, and the two largest texts with a number."""
    return dict(browser.execute_script(FIRST_SCREEN))


def first_paint_ms(browser: Any) -> float:
    """From the call of the page to its first text or picture, as the browser measures it."""
    wait = """const done = arguments[0], found = () => performance.getEntriesByName("first-contentful-paint")[0];
    const look = () => found() ? done(found().startTime) : setTimeout(look, 20); look();"""
    return float(browser.execute_async_script(wait))
