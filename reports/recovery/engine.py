"""What an engine elsewhere noticed of the faults by itself, and when. Called by the page and the terminal.

Its own time-outs (`engine_timeouts`) say after how long it takes something for lost, its events (`engine_event`) when
it did; recovery hardly ever waits for that, so it is set beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.jobs import Recorded
from proving_ground.reports.recovery.replaced import is_about
from proving_ground.reports.recovery.words import plural

MOST = 6  # words of one kind of fault: more is the engine's way back to where it was


def timeouts(recorded: Recorded) -> str:
    """`slurm: SlurmdTimeout 300 s, KillWait 30 s`; empty where no engine says any."""
    told = next((it for it in recorded.engine if it["event"] == "engine_timeouts"), None)
    if told is None or not told.get("seconds"):
        return ""
    return f"{told['engine']}: {', '.join(f'{name} {float(value):g} s' for name, value in told['seconds'].items())}"


def noticed(recorded: Recorded, incidents: Sequence[Incident]) -> list[str]:
    """A line for each kind of fault: the engine's words for what was hit, and how long after the fault they held."""
    kinds = dict.fromkeys(one.kind for one in incidents if one.injected)
    lines = [line(kind, recorded, [one for one in incidents if one.injected and one.kind == kind]) for kind in kinds]
    return [it for it in lines if it]


def line(kind: str, recorded: Recorded, own: Sequence[Incident]) -> str:
    """`slurm_node_down: down after 0.3 s ± 0.6 s (1 of 1); training went on after 0.9 s`; empty: it said nothing."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for one in own:
        for word, found in words_of(recorded, one).items():
            seen.setdefault(word, []).append(found)
    if not seen:
        return ""
    parts = [
        f"{word} after {max(0.0, median(s for s, _ in found)):.1f} s ± {max(e for _, e in found):.1f} s"
        + ("" if len(own) == 1 else f" ({len(found)} of {len(own)})")
        for word, found in list(seen.items())[:MOST]
    ]
    back = [s for one in own if (s := one.took("first_committed_step")) is not None]
    on = f"training went on after {median(back):.1f} s" if back else ""
    return f"{kind}, {plural(len(own), 'fault')}: {', '.join(parts)}" + (f"; {on}" if on else "")


def words_of(recorded: Recorded, one: Incident) -> dict[str, tuple[float, float]]:
    """What the engine said of what a fault hit, at first → seconds after it, and by how much that may be wrong."""
    found: dict[str, tuple[float, float]] = {}
    for it in recorded.engine:
        if it["event"] == "engine_event" and is_about(it, one.target):
            after_s, error_s = float(it["at_t"]) - one.inject_t, float(it.get("error_s") or 0.0)
            if after_s > -error_s and one.within(max(float(it["at_t"]), one.inject_t)):
                found.setdefault(said(it), (after_s, error_s))
    return found


def said(event: Mapping[str, Any]) -> str:
    """`node down*`, `job PENDING`: one word for all nodes."""
    return f"{str(event['about']).partition('/')[0].lower()} {event.get('reason')}"
