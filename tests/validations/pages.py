"""HTML pages of what was measured: `python -m tests.validations pages [--out DIR]`.

An index and a page for each file in `reports/measured`, in the style of the reports, one file each, and the values
beside it. Tables are those of the documents (`tables`), answers and verdicts those of the validations (`answers`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from proving_ground.bench.rundir import write_atomic
from proving_ground.reports import layout, looks
from proving_ground.reports.svg import Chart
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from tests.validations import answers, depends, pictures, tables
from tests.validations.__main__ import VALIDATIONS
from tests.validations.answers import Answer
from tests.validations.markdown import Block, blocks, inline
from tests.validations.sitting import MEASURED, ROOT, cut_off

OUT = ROOT / "build" / "validations"
TEMPLATES = Path(__file__).with_name("templates")
MORE = {"matrix": ("matrix-targets", "matrix")}
"""File → the tables that are made of it, where it is not the one of its name."""

MODULES = {
    "accuracy": "tests.benchmarks.digits_accuracy",
    "checkpoint-speed": "tests.benchmarks.checkpoint_speed",
    "step-cost": "tests.benchmarks.step_cost",
}
"""File → the module that measures it, where that is no validation."""

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """What a page is about: the question, how long an answer takes, how it is answered and drawn."""

    question: str
    takes: str
    answer: Callable[[Document], Answer]
    charts: Callable[[Document], list[Chart]]


PAGES: dict[str, Page] = {
    "trainers": Page("Is a broken trainer ever called recovered, or a sound one not?",
                     "about an hour for 329 cells, two jobs at once", answers.of_trainers, pictures.of_trainers),
    "same-training": Page("Does training stay bitwise the same through kills?",
                          "about 1.5 hours for 300 schedules", answers.of_same_training, pictures.of_same_training),
    "recovery": Page("How long does live recovery take?", "about 1.5 hours for 84 jobs of five faults",
                     answers.of_recovery, pictures.of_recovery),
    "restart": Page("How long does recovery by a restart take?", "about half an hour for 36 jobs",
                    answers.of_restart, pictures.of_restart),
    "shootout": Page("How do recovery strategies compare under one schedule?", "about 25 minutes a round",
                     answers.of_shootout, pictures.of_shootout),
    "effective": Page("How much time goes into the final weights?",
                      "about 40 minutes a round", answers.of_effective, pictures.of_effective),
    "soak": Page("Does anything go wrong in thousands of random faults?",
                 "about 12 s a fault, several jobs side by side", answers.of_soak, pictures.of_soak),
    "simulation": Page("Does the membership logic keep its rules in a million seeded runs?",
                       "hours on two cores", answers.of_simulation, pictures.of_simulation),
    "connections": Page("Is a record lost when connections to the hosts break?", "about 25 minutes for ten jobs",
                        answers.of_connections, pictures.of_connections),
    "searches": Page("What does early stopping save, and what does a kill cost a search?",
                     "about an hour and a half: ten seeds, twenty kills, five turns", answers.of_searches,
                     pictures.of_searches),
    "scaling": Page("How well does the default suite scale?", "about six minutes a round, 20 rounds",
                    answers.of_scaling, pictures.of_scaling),
    "matrix": Page("How close is training to what its links allow?", "some hours a round, three rounds",
                   answers.of_matrix, pictures.of_matrix),
    "attribution": Page("Are the lost percents booked on what really caused them?", "some minutes",
                        answers.of_attribution, pictures.of_attribution),
    "aa": Page("Does a comparison of two runs cry wolf, and does it find 5 %?", "about two hours for 100 rounds",
               answers.of_aa, pictures.of_aa),
    "aa-in-turn": Page("And a comparison of two cases of one run?", "nothing makes it again",
                       answers.of_aa_in_turn, pictures.of_aa_in_turn),
    "tampering": Page("Is it noticed when a sealed record was changed?", "about two hours",
                      answers.of_tampering, pictures.of_tampering),
    "suites": Page("Is a suite with a mistake refused in a line?", "minutes to an hour, by the number of cores",
                   answers.of_suites, pictures.of_suites),
    "inputs": Page("Does every mistake of a caller end in one line?", "an hour or two on two cores",
                   answers.of_inputs, pictures.of_inputs),
    "inputs-first": Page("And before more commands were asked, and two defects mended?", "nothing makes it again",
                         answers.of_inputs, pictures.of_inputs),
    "checkpoints": Page("Is a checkpoint intact after a crash at any point?", "minutes", answers.of_checkpoints,
                        pictures.of_checkpoints),
    "checkpoint-speed": Page("What does a checkpoint cost?", "some minutes for 20 rounds",
                             answers.of_checkpoint_speed, pictures.of_checkpoint_speed),
    "step-cost": Page("What do live recovery and exact sums cost while nothing fails?",
                      "minutes a round", answers.of_step_cost, pictures.of_step_cost),
    "alerts": Page("Does the right alert come for each fault, and how late?", "about half an hour",
                   answers.of_alerts, pictures.of_alerts),
    "gpu": Page("Does the trainer keep up with a plain loop on a GPU?",
                "about eight minutes where there is a GPU", answers.of_gpu, pictures.of_gpu),
    "healthy": Page("Is anything said while nothing is wrong?", "an hour", answers.of_healthy, pictures.of_healthy),
    "pulumi": Page("Does a stack stand up, come down and mend?",
                   "about an hour for 30 rounds and interruptions", answers.of_pulumi, pictures.of_pulumi),
    "clones": Page("Do the README's two commands end in an answer?", "about ten minutes a round of both commands, idle",
                   answers.of_clones, pictures.of_clones),
    "accuracy": Page("Does the digits network learn the same on every number of ranks?",
                     "about five minutes for 15 trainings", answers.of_accuracy, pictures.of_accuracy),
}  # fmt: skip
"""Name of a measured file → its page, in the order of the index."""


def main(argv: Sequence[str]) -> int:
    """Write all pages; where the index lies."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations pages", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="default: build/validations")
    print(write(parser.parse_args(argv).out))
    return 0


def write(out: Path) -> Path:
    """The index's path, once all is there; a file that was not measured yet has no page."""
    out.mkdir(parents=True, exist_ok=True)
    documents = {name: found for name in PAGES if (found := tables.measured(name))}
    for name, document in documents.items():
        shutil.copyfile(MEASURED / f"{name}.json", out / f"{name}.json")
        write_atomic(out / f"{name}.html", html(name, document))
    write_atomic(out / "index.html", index(documents))
    return out / "index.html"


def html(name: str, document: Document) -> str:
    """One page as text."""
    found, answer, charts = PAGES[name], PAGES[name].answer(document), PAGES[name].charts(document)
    return layout.render("validation.html.j2", {
        "page_title": f"{answer.verdict}: {name}",
        "title": found.question,
        "name": name,
        "overall": answer.verdict,
        "verdict_words": VERDICT_WORDS[answer.verdict],
        "hero": {"number": answer.number, "unit": answer.unit, "ends": answer.ends, "about": inline(answer.about)},
        "answers": [],
        "warnings": warnings(document),
        "reasons": [answer.why] if answer.why else [],
        "headline": asked(answer),
        "how": how(name),
        "label": document.get("label", "emulated"),
        "label_words": machine(document),
        "signs": looks.SIGN,
        "picture": charts[0],
        "charts": charts[1:],
        "tables": list(shown(name, document)),
        "run": inline(made_by(name) or f"`{document['command']}`"),
        "takes": found.takes,
        "facts": facts(document),
        "file": f"{name}.json",
        "kilobytes": (MEASURED / f"{name}.json").stat().st_size / 1000,
    }, [TEMPLATES])  # fmt: skip


VERDICT_WORDS = {PASS: "every target met", FAIL: "a target missed", UNKNOWN: "cannot tell yet"}


def asked(answer: Answer) -> Markup:
    """What was asked beside what came."""
    rows = {"Target": answer.asked, "Measured": answer.measured, "Of": answer.n}
    return Markup("<br>").join(Markup("<b>{}:</b> {}").format(key, inline(it)) for key, it in rows.items())


def index(documents: Mapping[str, Document]) -> str:
    """The list of all."""
    found = {name: PAGES[name].answer(document) for name, document in documents.items()}
    rows = [
        {"name": name, "page": PAGES[name], "answer": found[name], "about": inline(found[name].about),
         "commits": commits(document), "changed": has_changed(document), "dates": dates(document)}
        for name, document in documents.items()
    ]  # fmt: skip
    counts = Counter(it.verdict for it in found.values())
    return layout.render("validations.html.j2", {
        "page_title": f"{len(rows)} validations",
        "title": "What was measured to back the documents",
        "rows": rows,
        "passed": counts[PASS],
        "counts": ", ".join(f"{counts[it]} {it}" for it in (PASS, FAIL, UNKNOWN) if counts[it]),
        "stale": sum(row["changed"] == CHANGED for row in rows),
        "signs": looks.SIGN,
    }, [TEMPLATES])  # fmt: skip


CHANGED, SAME = "changed since", "still the same"


def has_changed(document: Document) -> str:
    """Whether the code behind it is still the same, in words."""
    return (CHANGED if depends.has_changed(document) else SAME) if document.get("code") else "not recorded"


def commits(document: Document) -> str:
    """The first and the last that it was measured at."""
    return tables.between(document["code"]) if document.get("code") else str(document.get("commit", "not recorded"))


def warnings(document: Document) -> list[str]:
    """What is to be known before the answer is believed; without the dot."""
    if has_changed(document) == CHANGED:
        return [f"its code has changed since it was measured at {commits(document)}: the verdict is of the code there"]
    return [] if document.get("code") else ["which code this was measured with was not recorded"]


def shown(name: str, document: Document) -> Iterator[Block]:
    """The tables and sentences of the documents."""
    for table in MORE.get(name, (name,)):
        if table in tables.TABLES:
            yield from blocks(tables.TABLES[table](document))


def how(name: str) -> Markup:
    """How it is measured, as the module says that does it; else as the documents do before the table."""
    module = MODULES.get(name) or (f"tests.validations.{name.replace('-', '_')}" if name in VALIDATIONS else "")
    said = (importlib.import_module(module).__doc__ or "").partition("\n\n")[2] if module else before_table(name)
    return inline(" ".join(said.split()))


def before_table(name: str) -> str:
    """The paragraph of the documents before a table; nothing where they have none."""
    texts = (path.read_text().partition(f"<!-- measured: {name} -->") for path in tables.DOCUMENTS)
    found = next((before for before, marker, _ in texts if marker), "")
    return re.split(r"\n\s*\n", found.strip())[-1].partition("\n")[2]


def made_by(name: str) -> str:
    """The command in the list of the measured files, and how often it is needed."""
    found = re.search(rf"^\| `{name}\.json` \| (.*) \|$", (MEASURED / "README.md").read_text(), re.MULTILINE)
    return found[1] if found else ""


def machine(document: Document) -> str:
    """Where it was measured."""
    known = [it for it in (document.get("machine"), *document.get("other_machines", ())) if it]
    told = dict.fromkeys(
        f"{it['cores']} × {it['cpu']}, {it['memory_mb'] / 1000:.0f} GB, {it['kernel']}" for it in known
    )
    return f"measured on one machine: {', or '.join(told)}" if told else "which machine it was is not recorded"


def facts(document: Document) -> dict[str, str]:
    """When, where and from which code, and what was decided beforehand."""
    plan = {key: it for key, it in document.get("plan", {}).items() if not isinstance(it, list | dict)}
    told = {"measured at": commits(document), "code": has_changed(document), "dates": dates(document)}
    if document.get("earlier"):
        told["before it"] = " ".join(document["earlier"])
    if plan:
        told["decided before"] = ", ".join(f"{key} {it}" for key, it in sorted(plan.items()))
    if isinstance(document.get("cells"), dict) and (again := cut_off_of(document)):
        told["begun again"] = f"{again} that had been cut off"
    versions = {**document.get("versions", {}), **{it: document[it] for it in ("torch", "python") if it in document}}
    if versions:
        told["versions"] = ", ".join(f"{key} {it}" for key, it in sorted(versions.items()))
    return told


def cut_off_of(document: Document) -> int:
    """How many runs were begun and left no result; of files that count such."""
    cells = document["cells"].values()
    return cut_off(document) if all(isinstance(it, dict) for it in cells) else 0


def dates(document: Document) -> str:
    """The first and the last day of a measurement."""
    found = sorted(set(re.findall(r'"(20\d\d-\d\d-\d\d)"', json.dumps(document))))
    return " to ".join(dict.fromkeys([*found[:1], *found[-1:]])) or "not recorded"
