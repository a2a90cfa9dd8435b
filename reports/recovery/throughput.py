"""Training speed over time, with the faults' windows, the lost work and where it is made up. Called by the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports.recovery.checks import Evidence
from proving_ground.reports.recovery.effective import calm
from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.results import Analysis
from proving_ground.reports.recovery.steps import between
from proving_ground.reports.scaling import curves
from proving_ground.reports.svg import COLOUR, NARROW, WIDE, Chart, chart, quiet_axes, tip

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

WIDE_FAULTS, NARROW_FAULTS = 6, 3  # in one row; longer jobs go on in the next
MOST = 36  # faults drawn of one job
NAME_WIDTH = 34.0  # drawing units of a fault's name, with the room around it
POINTS = 400  # of one row
HIGHEST = 0.97  # quantile of the speeds that an axis reaches to: single fast steps may leave it


def throughput(analysis: Analysis) -> list[Chart]:
    """One chart a job with faults; of very many the first three."""
    made = [one_job(evidence) for evidence in analysis.jobs[:3]]
    return [found for found in made if found]


def losses(analysis: Analysis) -> list[Chart]:
    """The loss of the same jobs."""
    jobs = [it for it in analysis.jobs[:3] if any(one.injected for one in it.incidents) and not it.steps.empty]
    found = [curves.of_job(analysis.run, it.job.id, float(it.steps["end"].min())) for it in jobs]
    return [it for it in found if it]


def one_job(evidence: Evidence) -> Chart | None:
    """Steps a second in rows, like lines of a text."""
    every = [one for one in evidence.incidents if one.injected]
    incidents = every[:MOST]
    if not incidents or evidence.steps.empty:
        return None
    pace, first = float(calm(evidence).median()), float(evidence.steps["end"].min())
    wide, narrow = (rows(evidence, every, most, 10 * pace) for most in (WIDE_FAULTS, NARROW_FAULTS))

    def draw(drawing: Drawing, is_narrow: bool) -> None:  # noqa: FBT001
        spans = narrow if is_narrow else wide
        lines = drawing.subplots(len(spans), squeeze=False)[:, 0]
        for axes, (begin, end) in zip(lines, spans, strict=True):
            draw_row(axes, evidence, [one for one in incidents if begin <= one.inject_t < end], (begin, end), pace)
            mark_made_up(axes, [one for one in incidents if begin <= (one.moments["work_made_up"] or -1) <= end], first)
        lines[-1].set_xlabel("seconds since the first step")

    shown = "" if len(incidents) == len(every) else f" The first {MOST} are shown."
    sentence = (
        f"Committed steps a second of job {evidence.job.id}. Shaded: from a fault to full speed; hatched: work "
        f"that was lost and done again; a triangle: the lost work is made up.{shown}"
    )
    name = f"throughput-{evidence.job.id}"
    return chart(name, f"Training speed of job {evidence.job.id}", sentence, draw, (150 * len(wide), 140 * len(narrow)))


def rows(evidence: Evidence, incidents: Sequence[Incident], most: int, lead: float) -> list[tuple[float, float]]:
    """(begin, end) of each row: `most` faults, and `lead` seconds before the first."""
    first, last = float(evidence.steps["end"].min()), float(evidence.steps["end"].max())
    last = max(last, incidents[-1].inject_t + lead)  # a job that got stuck has no step after its last fault
    cuts = [one.inject_t - lead for one in incidents[most::most]]
    return list(zip([first, *cuts], [*cuts, last], strict=True))[: MOST // most]


def draw_row(
    axes: Axes, evidence: Evidence, incidents: Sequence[Incident], span: tuple[float, float], pace: float
) -> None:
    """One row of time with the faults in it."""
    (begin, end), start = span, float(evidence.steps["end"].min())
    edges, rate = rates(evidence.steps, begin, end)
    if len(rate):
        axes.stairs(rate, edges - start, color=COLOUR["accent"], linewidth=1.5, zorder=3, baseline=None)
    usual = [1 / pace] if pace > 0 else [1.0]
    top = 1.15 * float(np.quantile(np.append(rate, usual), HIGHEST))
    for one in incidents:
        draw_fault(axes, one, lost_since(evidence.thrown_away, one), start, end)
    name_faults(axes, incidents, span, start)
    axes.set_xlim(begin - start, max(end, begin + pace) - start)
    axes.set_ylim(0, top)
    axes.set_ylabel("steps/s")
    axes.locator_params(axis="y", nbins=4)
    quiet_axes(axes)


def lost_since(steps: pd.DataFrame, one: Incident) -> float | None:
    """When the first step began that the fault threw away; None where it threw none away."""
    if one.new is None:
        return None
    lost = between(steps, -math.inf, one.inject_t)
    lost = lost[(lost["generation"] == one.old) & (lost["step"] > one.since)]
    return float((lost["end"] - lost["seconds"]).min()) if len(lost) else None


def draw_fault(axes: Axes, one: Incident, lost_t: float | None, start: float, end: float) -> None:
    """Its window and its lost work."""
    full, held_s = one.moments.get("full_speed"), one.held_s
    back = full or min(one.until_t, end)
    took = f"{full - one.inject_t - (held_s or 0.0):.2f} s to full speed" if full else "never at full speed again"
    held = "" if held_s is None else f"held for {held_s:.2f} s, then "
    said = f"{one.fault} {one.kind}: {held}{took}"
    axes.axvspan(one.inject_t - start, back - start, color=COLOUR["bad"], alpha=0.16, linewidth=0, gid=tip(said))
    if lost_t is not None:
        axes.axvspan(
            lost_t - start, one.inject_t - start, facecolor="none", edgecolor=COLOUR["rest"], hatch="////", linewidth=0,
            gid=tip(f"{one.newest - one.since} steps lost"),
        )  # fmt: skip


def name_faults(axes: Axes, incidents: Sequence[Incident], span: tuple[float, float], start: float) -> None:
    """Their names above the row, as far as there is room: what is left out is told by its mark."""
    room = NAME_WIDTH * (span[1] - span[0]) / (WIDE if len(incidents) > NARROW_FAULTS else NARROW)
    free_from = -math.inf
    for one in incidents:
        if free_from <= one.inject_t <= span[1] - room / 2:
            axes.annotate(one.fault, (one.inject_t - start, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                          textcoords="offset points", va="bottom", color=COLOUR["soft"], fontsize=10.5)  # fmt: skip
            free_from = one.inject_t + room


def mark_made_up(axes: Axes, incidents: Sequence[Incident], start: float) -> None:
    """A triangle where the work that a fault had cost was made up."""
    for one in incidents:
        made_up = float(one.moments["work_made_up"] or 0)
        said = f"{one.fault}: lost work made up after {made_up - one.inject_t:.2f} s"
        axes.plot(
            made_up - start, 0, "^", color=COLOUR["optimizer"], markersize=7, clip_on=False, gid=tip(said), zorder=4
        )


def rates(steps: pd.DataFrame, begin: float, end: float) -> tuple[Floats, Floats]:
    """(edges, committed steps a second between them): an edge is the end of a step, of many steps of every k-th."""
    inside = between(steps, begin, end)
    ends = np.unique(inside.loc[inside["committed"], "end"].to_numpy(dtype=float))
    stride = max(1, -(-len(ends) // POINTS))
    edges = ends[::stride]
    return edges, stride / np.diff(edges)
