"""Turns matplotlib figures into small SVG that lives inside the page and follows its light and dark colours.

Called by the modules of the charts. They draw with stand-in colours, one for each role; here these become CSS
variables. Fonts are the page's own.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

ROLES = (
    "ink", "soft", "line", "grid", "paper", "accent", "second", "bar", "bad",
    "data", "forward", "backward", "wait", "comm", "optimizer", "checkpoint", "between", "stall", "rest",
)  # fmt: skip
COLOUR = {role: f"#fe00{index:02x}" for index, role in enumerate(ROLES)}
WIDE, NARROW = 820, 344  # units of the drawing = CSS pixels at full size

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "proving-ground",  # the same ids every time
    "text.parse_math": False,
    "font.size": 12,
    "hatch.linewidth": 1.2,
    "axes.edgecolor": COLOUR["line"],
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": COLOUR["soft"],
    "axes.titlecolor": COLOUR["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "xtick.color": COLOUR["line"],
    "ytick.color": COLOUR["line"],
    "xtick.labelcolor": COLOUR["soft"],
    "ytick.labelcolor": COLOUR["soft"],
    "xtick.major.pad": 7,
    "text.color": COLOUR["ink"],
    "grid.color": COLOUR["grid"],
    "axes.axisbelow": True,
}


@dataclass(frozen=True)
class Chart:
    """One chart for the page: the same drawing for wide and for narrow screens, and the sentence that goes with it."""

    name: str
    title: str
    sentence: str
    wide: str
    narrow: str


Draw = Callable[[Figure, bool], None]
"""Draws on an empty figure; the flag says that it is the narrow one."""


def chart(name: str, title: str, sentence: str, draw: Draw, heights: tuple[float, float]) -> Chart:
    """Draw the wide and the narrow version; heights in drawing units."""
    wide = render(f"{name}-wide", title, sentence, (WIDE, heights[0]), lambda figure: draw(figure, False))  # noqa: FBT003
    narrow = render(f"{name}-narrow", title, sentence, (NARROW, heights[1]), lambda figure: draw(figure, True))  # noqa: FBT003
    return Chart(name, title, sentence, wide, narrow)


def render(name: str, title: str, sentence: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """One drawing as an `<svg>` element with title and description for those who cannot see it."""
    with mpl.rc_context(SETTINGS):
        layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.04, wspace=0.04, hspace=0.06)
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), layout=layout)
        FigureCanvasSVG(figure)
        draw(figure)
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return embed(out.getvalue(), name, title, sentence)


def embed(drawing: str, name: str, title: str, sentence: str) -> str:
    """Make matplotlib's file fit for the inside of a page."""
    body = drawing[drawing.index("</defs>", drawing.index("<style")) + len("</defs>") :]
    view = re.search(r'viewBox="([^"]*)"', drawing)
    body = re.sub(r"<g id=\"tip:([^\"]*)\">", r"<g class='tip'><title>\1</title>", body)
    used = set(re.findall(r"#([pmh][0-9a-f]{10})", body))
    body = re.sub(r'\sid="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r"#([pmh][0-9a-f]{10})\b", rf"#{name}-\1", body)
    for role, colour in COLOUR.items():
        body = body.replace(colour, f"var(--{role})")
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    body = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", body)
    body = re.sub(r"<[^>]+>", hundredths, body)
    body = re.sub(r"\s*\n\s*", " ", body)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'viewBox="{view[1] if view else ""}" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{html.escape(title)}</title><desc id="{name}-desc">{html.escape(sentence)}</desc>'
    )
    return head + body[: body.rindex("</svg>")].strip() + "</svg>"


def hundredths(tag: re.Match[str]) -> str:
    """A tag with its lengths to a hundredth of a pixel, which is enough; what people read stands between tags."""
    return re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0])


def tip(text: str) -> str:
    """The id of a drawn thing that shows `text` when the mouse rests on it."""
    return f"tip:{text}"


def quiet_axes(axes: Axes, grid: Literal["x", "y"] = "y") -> None:
    """Axes that step back: no ticks, a faint grid in one direction."""
    axes.tick_params(length=0)
    axes.grid(visible=True, axis=grid, linewidth=1)
    axes.spines["left"].set_visible(grid != "y")
