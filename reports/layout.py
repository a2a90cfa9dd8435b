"""What all HTML pages share: one template environment, contents made from the headings, the link to all runs.

Called by `reports.scaling.page`, `reports.recovery.page`, `reports.comparing.overlay` and `reports.gallery`.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from proving_ground.bench import nodes, rundir
from proving_ground.bench.rundir import RunDir
from proving_ground.reports import numbers
from proving_ground.reports.document import codes

TEMPLATES = Path(__file__).with_name("templates")
HEADING = re.compile(r'<h2 id="([^"]+)" data-short="([^"]+)">(.*?)</h2>', re.DOTALL)
SMALL_HEADING = re.compile(r'<h3 id="([^"]+)">(.*?)</h3>', re.DOTALL)
CONTENTS, INDEX = "<!-- contents -->", "<!-- index -->"
PACKAGES = ("torch", "torchvision", "numpy", "pandas", "scipy", "matplotlib")  # those that figures depend on
ALL_RUNS = ' <a href="../../index.html">all runs</a>'
"""Where `reports.gallery` writes its page, seen from a run's."""


def render(template: str, context: Mapping[str, Any], folders: Sequence[Path] = ()) -> str:
    """One page as text."""
    environment = jinja2.Environment(
        finalize=keep_together, loader=jinja2.FileSystemLoader([*folders, TEMPLATES]),
        undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"plain": numbers.plain, "percent": numbers.percent, "ends": numbers.ends}
    return with_contents(environment.get_template(template).render(**context))


def keep_together(value: object) -> object:
    """No line may break between a number and its unit or its name."""
    if type(value) is not str:  # markup stays as it is
        return value
    joined = re.sub(
        r"(?<=\d) (?=%|ms|s\b|nodes?\b|steps?\b|points\b)|(?<=[a-z?]) (?=\d+\.\d)", "\N{NO-BREAK SPACE}", value
    )
    return re.sub(r"(?<=\d)–(?=\d)", "\N{WORD JOINER}–\N{WORD JOINER}", joined)


def with_contents(html: str) -> str:
    """The page with a list of its sections, and with every heading a link to itself."""
    links = "".join(f'<li><a href="#{name}">{short}</a></li>' for name, short, _ in HEADING.findall(html))
    made = f'<nav class="contents" aria-label="Contents"><ul>{links}</ul></nav>' if links else ""
    html = HEADING.sub(r'<h2 id="\1"><a href="#\1">\3</a></h2>', html)
    return SMALL_HEADING.sub(r'<h3 id="\1"><a href="#\1">\2</a></h3>', html).replace(CONTENTS, made)


def write(run: RunDir, html: str) -> None:
    """Write `report.html`, whole or not at all; with a link to the list of all runs, where there is one."""
    rundir.write_atomic(run.report, linked(html) if (run.path.parent.parent / "index.html").exists() else html)


def linked(html: str) -> str:
    """A run's page with a link to the list of all runs."""
    return html.replace(INDEX, ALL_RUNS, 1)


def facts(run: RunDir, plan: Mapping[str, Any], origin: Mapping[str, Any], events: int) -> list[tuple[str, str]]:
    """Versions, hardware, seed and commit; `origin` is the run's provenance."""
    host, packages = origin.get("host", {}), origin.get("packages", {})
    commit = ", then ".join(codes(origin))
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(origin["wall_s"])) if "wall_s" in origin else "not known"
    memory = f", {host['memory_mb'] / 1000:,.0f} GB of memory" if "memory_mb" in host else ""
    shown = [f"{name} {packages[name]}" for name in PACKAGES if name in packages]
    return [
        ("run", f"{run.suite}/{run.run_id}"),
        ("started", when),
        (
            "machine",
            f"{host.get('cpu', 'not known')}, {host.get('cores', '?')} cores{memory}, {host.get('kernel', '')}",
        ),
        *([("GPU", host["gpu"])] if host.get("gpu", "none") != "none" else []),
        ("cluster", str(plan["cluster"]["name"])),
        *([("nodes", nodes.in_words(known))] if (known := plan["cluster"].get("nodes")) else []),
        ("software", ", ".join([f"Python {origin.get('python', 'not known')}", *shown])),
        ("commit", commit),
        ("seed", str(origin.get("seed", "not known"))),
        (
            "asked for",
            shlex.join(Path(word).name if number == 0 else word for number, word in enumerate(origin.get("argv", []))),
        ),
        ("events read", f"{events:,}"),
    ]
