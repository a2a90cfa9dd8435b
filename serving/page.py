"""The page and the table of a load. Called by `serving.commands`; what is computed is computed in `serving.figures`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from proving_ground.reports import layout, looks, numbers
from proving_ground.reports.intervals import half_width
from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip
from proving_ground.serving.figures import P99_NEEDS, SETTLE_S, Figure, Load, label_of, overall, slow_users

TEMPLATES = Path(__file__).with_name("templates")
COLUMNS = {"requests_per_s": "requests/s", "p50": "p50, ms", "p99": "p99, ms", "error_share": "errors, share"}
RULE = "Saturated is the first level than which no higher one gives 10 % more answers a second."
WORDS = {"pass": "every check passed", "fail": "a check failed", "unknown": "this run cannot tell, which is no pass"}
LABELS = {"emulated": "users, proxy and replicas share the cores of one machine",
          "real": "the end point is on another machine than the users"}  # fmt: skip
SHOWN = ("checkpoint", "checkpoint_sha256", "run_id", "commit", "seal_sha256")
WIDE_PANEL, NARROW_PANEL = 300, 240  # drawing units


def html(load: Load, made: Mapping[str, Any]) -> str:
    """The page as text."""
    verdict, figures = overall(made), made["figures"]
    return layout.render("load.html.j2", {
        "page_title": f"{verdict}: load {load.run.run_id}", "title": title(load, figures),
        "run": load.run, "overall": verdict, "verdict_words": WORDS[verdict], "signs": looks.SIGN,
        "hero": hero(figures), "answers": answers(figures), "warnings": [], "headline": saturation_words(load, figures),
        "reasons": [f"{it['check']}: {it['why']}" for it in made["verdicts"] if it["verdict"] != "pass"],
        "label": label_of(load), "label_words": LABELS[label_of(load)],
        "columns": list(COLUMNS.values()), "rows": rows(load, figures), "settle_s": f"{SETTLE_S:g}",
        "p99_needs": P99_NEEDS, "rule": RULE, "rate_chart": rate_chart(figures), "time_chart": time_chart(figures),
        "killed": next((it["why"] for it in made["verdicts"] if it["check"] == "lost_requests"), ""),
        "verdicts": made["verdicts"], "about": about(load),
        "figures": [{**it, "shown": ", ".join(map(numbers.short, it["values"]))} for it in figures],
    }, [TEMPLATES])  # fmt: skip


def title(load: Load, figures: Sequence[Figure]) -> str:
    """What was measured, in a line."""
    most = best(figures)
    words = f"{numbers.short(most['median'])} answers a second at most" if most else "No answer"
    engine, replicas = load.about.get("engine"), load.about.get("replicas")
    return f"{words}, {replicas} replica{'s' if replicas != 1 else ''} of {engine}" if engine else words


def of(figures: Sequence[Figure], name: str) -> list[Figure]:
    """All figures of a name."""
    return [it for it in figures if it["name"] == name]


def best(figures: Sequence[Figure]) -> Figure | None:
    """The highest rate of answers."""
    return max(of(figures, "requests_per_s"), key=lambda it: float(it["median"]), default=None)


def hero(figures: Sequence[Figure]) -> dict[str, str] | None:
    """The number to look at first."""
    most = best(figures)
    if most is None:
        return None
    places = numbers.digits(most["median"], most["ci95"])
    ends = f"{numbers.ends(most, places)} (95 % CI)" if told(most) else ""
    more = "" if ends else "; one repeat" if most["n"] == 1 else "; repeats differ too much for an interval"
    return {"number": numbers.plain(most["median"], places), "unit": "requests/s",
            "about": f"at {users_of(most)}{more}", "ends": ends}  # fmt: skip


def users_of(figure: Figure) -> str:
    """`8 users`."""
    number = figure["where"]["users"]
    return f"{number} user{'s' if number != 1 else ''}"


def answers(figures: Sequence[Figure]) -> list[dict[str, str]]:
    """The times at the fewest and at the most users, and what the kill has cost."""
    shown = [it for name in ("p50", "p99") for it in of(figures, name)[:: max(1, len(of(figures, name)) - 1)]]
    found = [
        {"name": it["name"], "sign": "", "value": f"{numbers.short(it['median'])} ms", "more": f"at {users_of(it)}"}
        for it in shown
    ]
    for name, words in (("lost_at_kill", "lost at the kill"), ("in_flight_at_kill", "in flight at the kill")):
        found += [{"name": words, "sign": "", "value": f"{it['median']:g}", "more": "requests"}
                  for it in of(figures, name)]  # fmt: skip
    return found


def saturation_words(load: Load, figures: Sequence[Figure]) -> str:
    """Where it is saturated."""
    if why := slow_users(load):
        return f"Where the end point is saturated cannot be told: {why}."
    found = of(figures, "saturation_users")
    at = (
        f"saturated at {found[0]['median']:g} users, by the medians"
        if found
        else "not seen saturated at these numbers of users"
    )
    return f"The end point is {at}."


def rows(load: Load, figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """A row for each number of users."""
    found = []
    for users in load.orders["users"]:
        here = {it["name"]: it for it in figures if it["where"].get("users") == users}
        cells = [cell(here.get(name)) for name in COLUMNS]
        found.append({"users": users, "cells": cells})
    return found


def cell(figure: Figure | None) -> dict[str, str]:
    """A figure as text."""
    if figure is None:
        return {"median": numbers.GAP, "ends": "", "n": ""}
    interval = figure["ci95"]
    places = numbers.digits(figure["median"], interval)
    same = interval is not None and interval[0] == interval[1]
    ends = numbers.range_of(interval, places) if same else numbers.ends(figure, places)
    return {"median": numbers.plain(figure["median"], places), "ends": ends, "n": str(figure["n"])}


def about(load: Load) -> list[tuple[str, str]]:
    """What was asked for, and of what."""
    orders = load.orders
    words = {"users": ", ".join(map(str, orders["users"])), "seconds of a level": f"{orders['seconds']:g}",
             "repeats": str(orders["repeats"]), "addresses": ", ".join(orders["urls"])}  # fmt: skip
    more = {name: str(it) for name, it in load.about.items() if name not in ("request", "lineage")}
    argv = load.run.read("provenance")["argv"]
    lineage = load.about.get("lineage", {})
    trained = {f"model's {name}": str(lineage[name]) for name in SHOWN if name in lineage}
    return [
        *words.items(),
        *more.items(),
        *trained.items(),
        ("command", shlex.join(str(it).rpartition("/")[2] for it in argv)),
    ]


def rate_chart(figures: Sequence[Figure]) -> Chart:
    """Answers a second by users."""
    return by_users("rate", "Answers a second by users", "requests/s", {"requests_per_s": ("accent", "o", "")}, figures)


def time_chart(figures: Sequence[Figure]) -> Chart:
    """Times by users."""
    lines = {"p50": ("accent", "o", "p50"), "p99": ("second", "s", "p99")}
    return by_users("times", "Time to an answer by users", "ms", lines, figures)


def told(figure: Figure) -> bool:
    """Whether the interval says anything; one that does not would only stretch the axis."""
    return figure["ci95"] is not None and half_width(figure["median"], figure["ci95"]) <= numbers.MEANINGLESS


def by_users(
    name: str, words: str, unit: str, lines: Mapping[str, tuple[str, str, str]], figures: Sequence[Figure]
) -> Chart:
    """A line for each figure, with its intervals."""

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001 - as `reports.svg` calls it
        del narrow
        axes = drawing.subplots()
        quiet_axes(axes)
        for figure, (role, marker, label) in lines.items():
            found = of(figures, figure)
            at = [it["where"]["users"] for it in found]
            medians = [it["median"] for it in found]
            axes.plot(at, medians, color=COLOUR[role], marker=marker, label=label, clip_on=False)  # whole at the edges
            for x, it in zip(at, found, strict=True):
                low, high = it["ci95"] if told(it) else (it["median"], it["median"])
                text = tip(f"{users_of(it)}: {numbers.short(it['median'])} {unit} {label}".strip())
                axes.plot([x, x], [max(0.0, low), high], color=COLOUR[role], linewidth=2, gid=text)
        axes.set_xticks(sorted({it["where"]["users"] for name in lines for it in of(figures, name)}))
        axes.set_xlabel("users")
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        if len(lines) > 1:
            axes.legend(frameon=False)

    sentence = f"{words}, medians of the repeats with their 95 % intervals"
    return chart(name, words, sentence, draw, (WIDE_PANEL, NARROW_PANEL))


def table(load: Load, made: Mapping[str, Any]) -> list[str]:
    """The same for a terminal."""
    lines = [f"{'users':>6}" + "".join(f"{it:>26}" for it in COLUMNS.values())]
    for row in rows(load, made["figures"]):
        cells = (f"{it['median']} ({it['ends']})" if it["ends"] else it["median"] for it in row["cells"])
        lines.append(f"{row['users']:>6}" + "".join(f"{it:>26}" for it in cells))
    lines.append(saturation_words(load, made["figures"]))
    return [*lines, *(f"{it['check']}: {it['verdict']} ({it['why']})" for it in made["verdicts"])]
