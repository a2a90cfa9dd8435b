"""`report.html` of a search, on the layout that all reports share. Called by `search.report`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proving_ground.reports import layout, looks, numbers
from proving_ground.reports.scaling import page
from proving_ground.reports.values import data_link
from proving_ground.reports.verdicts import PASS
from proving_ground.search import charts, ledger, results
from proving_ground.search.ledger import Trial
from proving_ground.search.results import Analysis
from proving_ground.search.times import PARTS
from proving_ground.search.words import params_words, setting, value_words

TEMPLATES = Path(__file__).with_name("templates")
MOST_ANSWERS = 4


def write(analysis: Analysis) -> None:
    """Write `report.html`, whole or not at all."""
    layout.write(analysis.run, html(analysis))


def html(analysis: Analysis) -> str:
    """The page as text; it computes nothing that results do not have."""
    return layout.render("search.html.j2", context(analysis), [TEMPLATES])


def context(analysis: Analysis) -> dict[str, Any]:
    """Everything that the template shows."""
    overall = analysis.overall
    return {
        "page_title": f"{overall}: search {analysis.run.suite} {analysis.run.run_id}",
        "title": analysis.search.title,
        "verdict_words": page.VERDICT_WORDS[overall],
        "hero": hero(analysis),
        "answers": answers(analysis),
        "run": analysis.run,
        "search": analysis.search,
        "overall": overall,
        "headline": headline(analysis),
        "label": "real",
        "label_words": "every step was made by the trainer itself, on this machine",
        "warnings": warnings(analysis),
        "reasons": [it["why"] for it in analysis.verdicts if it["verdict"] != PASS],
        "signs": looks.SIGN,
        "best": analysis.best,
        "best_params": analysis.best.best_params(analysis.search.mode) if analysis.best else {},
        "schedule": schedule(analysis),
        "best_command": best_command(analysis),
        "rows": [row(analysis, it) for it in ranked(analysis)],
        "saved": saved(analysis),
        "copies": [(it.id, copy) for it in analysis.trials.values() for copy in it.copies],
        "parts": parts(analysis),
        "verdicts": analysis.verdicts,
        "facts": facts(analysis),
        "auto": analysis.asked.get("auto"),
        "command": f"pg search run --from {analysis.run.run_id}",
        "values": data_link("application/json", results.text(analysis)),
        "curves_chart": charts.curves(analysis),
        "parallel_chart": charts.parallel(analysis),
        "overhead_chart": charts.overhead(analysis),
    }


def one(analysis: Analysis, name: str, **where: object) -> float | None:
    """A figure's value."""
    found = (it for it in analysis.figures if it["name"] == name and it["where"].items() >= where.items())
    value = next(found, {"median": None})["median"]
    return None if value is None else float(value)


def hero(analysis: Analysis) -> dict[str, str] | None:
    """The one large number: the best value of the metric."""
    value = one(analysis, "best")
    if value is None or analysis.best is None:
        return None
    params = params_words(analysis.best.best_params(analysis.search.mode))
    about = f"the best {analysis.search.metric}: trial {analysis.best.id}, {params}"
    return {"number": value_words(value), "unit": analysis.search.metric, "ends": "", "about": about}


def answers(analysis: Analysis) -> list[dict[str, str]]:
    """What stands beside the large number."""
    states = Counter(map(charts.state_words, analysis.trials.values()))
    counted = ", ".join(f"{count} {words}" for words, count in states.most_common())
    share, overhead = one(analysis, "steps_saved_share"), analysis.times.overhead
    made = [{"name": "trials", "value": str(states.total()), "sign": "", "more": counted}]
    if analysis.search.algorithm == "asha" and share is not None:
        more = f"{one(analysis, 'steps_made'):,.0f} steps made"
        made.append({"name": "saved by early stopping", "value": numbers.percent(share), "sign": "", "more": more})
    if overhead is not None:
        more = f"of the time of {analysis.search.concurrent} slots"
        made.append({"name": "overhead", "value": numbers.percent(100 * overhead), "sign": "", "more": more})
    return made


def headline(analysis: Analysis) -> str:
    """What was searched, and how."""
    search = analysis.search
    return (
        f"{len(analysis.trials)} trials of {search.steps} steps, {search.concurrent} at once, "
        f"algorithm {search.algorithm}, over {', '.join(search.space)}."
    )


def warnings(analysis: Analysis) -> list[str]:
    """What a reader must know before all else."""
    failed = [it for it in analysis.trials.values() if it.state == ledger.FAILED]
    made = [f"{len(failed)} of {len(analysis.trials)} trials failed: {failed[0].why}"] if failed else []
    sittings = ledger.sittings(analysis.records)
    why = "the search was interrupted and resumed" if analysis.resumed else "a driver or a trial's worker died"
    return [*made, f"{why}: {sittings} sittings"] if sittings > 1 else made


def best_command(analysis: Analysis) -> str:
    """What trains with the best parameters by hand; of a population no single set of parameters does."""
    if analysis.best is None or analysis.search.algorithm == "pbt":
        return ""
    told = {
        **analysis.search.training,
        **analysis.best.best_params(analysis.search.mode),
        "steps": analysis.search.steps,
    }
    words = [word for name, value in told.items() for word in ("--set", f"{name}={setting(value)}")]
    return shlex.join(["pg", "training", "run", *words])


def schedule(analysis: Analysis) -> list[tuple[int, str]]:
    """Of a population: from which step on which parameters made the best value."""
    if analysis.best is None or analysis.search.algorithm != "pbt":
        return []
    step, _ = analysis.best.best(analysis.search.mode) or (0, 0.0)
    return [(it, params_words(params)) for it, params in ledger.schedule(analysis.trials, analysis.best.id, step)]


def ranked(analysis: Analysis) -> list[Trial]:
    """All trials, the best first; those without a value last, before them those that failed, which are never best."""
    sign = -1 if analysis.search.mode == "max" else 1

    def key(trial: Trial) -> tuple[bool, bool, float]:
        found = trial.best(analysis.search.mode)
        return found is None, trial.state == ledger.FAILED, sign * found[1] if found else 0.0

    return sorted(analysis.trials.values(), key=key)


def row(analysis: Analysis, trial: Trial) -> dict[str, Any]:
    """A line of the table of trials."""
    found, seconds = trial.best(analysis.search.mode), analysis.times.trials[trial.id].seconds
    params = trial.best_params(analysis.search.mode)
    return {
        "id": trial.id, "params": [value_of(params[name]) for name in analysis.search.space],
        "best": value_words(found[1]) if found else numbers.GAP, "step": found[0] if found else numbers.GAP,
        "steps": trial.steps, "state": charts.state_words(trial), "why": trial.why,
        "seconds": f"{seconds:.1f}" if seconds else numbers.GAP,
    }  # fmt: skip


def value_of(value: object) -> str:
    """A parameter in a cell."""
    return value_words(value) if isinstance(value, float) else str(value)


def saved(analysis: Analysis) -> dict[str, str]:
    """Steps, in words."""
    names = ("steps_made", "steps_in_full", "steps_saved", "steps_of_stopped", "steps_again", "steps_saved_share")
    return {it: numbers.plain(one(analysis, it), 1 if it.endswith("share") else 0) for it in names}


def parts(analysis: Analysis) -> list[dict[str, str]]:
    """What the slots' time went into."""
    whole = analysis.times.slots_s
    return [
        {
            "name": words, "seconds": numbers.plain(analysis.times.parts[part], 1),
            "share": numbers.percent(100 * analysis.times.parts[part] / whole) if whole else numbers.GAP,
        }
        for part, words in PARTS.items()
    ]  # fmt: skip


def facts(analysis: Analysis) -> list[tuple[str, str]]:
    """Versions, hardware, seed and commit."""
    origin: Mapping[str, Any] = analysis.run.read("provenance")
    plan = {"cluster": {"name": f"a Ray of its own on this machine, {analysis.search.concurrent} slots"}}
    versions = [f"{it} {origin['packages'][it]}" for it in ("ray", "optuna") if it in origin.get("packages", {})]
    told = layout.facts(analysis.run, plan, origin, len(analysis.records))
    return [*told, ("search by", ", ".join(versions))]
