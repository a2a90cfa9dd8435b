"""The HTML page of one run: one file, nothing loaded from outside. Called by `reports.__main__`."""

from __future__ import annotations

import jinja2

from bench import rundir
from reports import words
from reports.results import Analysis

PLAIN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{{ run.run_id }}</title>
<h1>{{ headline }}</h1><p>{{ verdict }}</p><table>
{% for f in figures %}<tr><td>{{ f.name }}<td>{{ f.where }}<td>{{ f.median }}<td>{{ f.unit }}<td>{{ f.ci95 }}
</tr>{% endfor %}</table></html>
"""


def write(analysis: Analysis) -> None:
    """Write `report.html`, whole or not at all."""
    template = jinja2.Environment(autoescape=True).from_string(PLAIN)
    text = template.render(
        run=analysis.run,
        figures=analysis.figures,
        headline=words.headline(analysis),
        verdict=words.verdict_line(analysis),
    )
    rundir.write_atomic(analysis.run.report, text)
