"""Grafana's dashboards, made from `monitoring.panels`; infra reads the files. Called by `monitoring.readers`.

A query that uses a metric nobody defines, or a label that its metric does not have, is refused: such a panel would be
empty for ever, and nobody would know whether that is good news.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from grafana_foundation_sdk.builders import bargauge, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders.common import StackingConfig, VizLegendOptions
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode, VizOrientation
from grafana_foundation_sdk.models.common import VisibilityMode as Visibility
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from proving_ground.bench.rundir import write_atomic
from proving_ground.monitoring import rules
from proving_ground.monitoring.metrics import METRICS
from proving_ground.monitoring.mistakes import MonitoringError
from proving_ground.monitoring.panels import ANNOTATIONS, CHOICES, DASHBOARDS, OF_JOBS, Kind, Shown

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = DataSourceRef("prometheus", "${source}")
STANDS_FOR = {"@job": 'run=~"$run", trial=~"$trial"', "@run": 'run=~"$run"', "@rate": "$__rate_interval"}
Panel = timeseries.Panel | statetimeline.Panel | stat.Panel | bargauge.Panel | table.Panel
WIDTH, HEIGHT = 12, 8  # of a panel, on Grafana's grid of 24 columns
WORDS = {"by", "on", "ignoring", "group_left", "group_right", "without", "or", "and", "unless", "bool", "offset"}
PROMETHEUS = {"ALERTS"}  # its own series
SUFFIXES = ("_bucket", "_sum", "_count")  # of a histogram's series
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
LITERAL = re.compile(r"\"[^\"]*\"|\{[^}]*\}|\[[^]]*\]")
NAME = re.compile(r"(?<![\w:.])[a-zA-Z_:][\w:]*(?!\w*\s*\()")


def write(folder: Path) -> list[Path]:
    """Write every dashboard to a folder; the files.

    Raises:
        MonitoringError: a query is wrong; says which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / f"{name}.json": text(name) for name in DASHBOARDS}
    for file, content in texts.items():
        write_atomic(file, content)
    return list(texts)


def text(name: str) -> str:
    """One dashboard as Grafana's JSON."""
    title, panels = DASHBOARDS[name]
    return JSONEncoder(indent=1, sort_keys=True).encode(dashboard(name, title, panels)) + "\n"


def dashboard(name: str, title: str, panels: tuple[Shown, ...]) -> Dashboard:
    """One dashboard: source, run and trial to choose from, faults and alerts shaded, its panels in two columns.

    Raises:
        MonitoringError: a query is wrong.
    """
    made = (
        builders.Dashboard(f"Proving Ground: {title}").uid(f"proving-ground-{name}").tags(["proving-ground"])
        .time("now-1h", "now").refresh("10s").timezone("browser").readonly().tooltip(DashboardCursorSync.CROSSHAIR)
        .link(builders.DashboardLink("Proving Ground").tags(["proving-ground"]).as_dropdown(as_dropdown=True)
              .keep_time(keep_time=True).include_vars(include_vars=True))
    )  # fmt: skip
    for variable in variables(*CHOICES.get(name, OF_JOBS)):
        made = made.with_variable(variable)
    for about, (query, colour) in ANNOTATIONS.items():
        if "@job" in query and name in CHOICES:
            continue  # no fault is injected there
        made = made.annotation(annotation(about, checked(query, f"annotation {about}"), colour))
    for shown in panels:
        made = made.with_panel(panel(shown, f"dashboard {name}, panel {shown.title!r}"))
    return made.build()


def variables(runs: str, trials: str) -> Iterator[builders.DatasourceVariable | builders.QueryVariable]:
    """What a reader chooses: the data source, runs, and trials of these, by the series that have them."""
    yield builders.DatasourceVariable("source").label("source").type("prometheus")
    for name, query in (("run", runs), ("trial", trials)):
        if not query:
            continue
        yield (
            builders.QueryVariable(name).label(name).datasource(SOURCE)
            .query({"query": f"label_values({query}, {name})", "refId": name})
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_DESC)
            .multi(multi=True).include_all(include_all=True).all_value(".*")
        )  # fmt: skip


class Shaded(builders.AnnotationQuery):
    """An annotation of Prometheus, which needs more than the builder can say."""

    def __init__(self, query: AnnotationQuery) -> None:
        super().__init__()
        self._internal = query


def annotation(name: str, query: str, colour: str) -> builders.AnnotationQuery:
    """Windows in which a query has series."""
    return Shaded(AnnotationQuery(name, SOURCE, enable=True, icon_color=colour, expr=query))


def panel(shown: Shown, where: str) -> Panel:
    """One panel."""
    made = KINDS[shown.kind](shown)
    made = made.title(shown.title).unit(shown.unit).datasource(SOURCE).span(WIDTH).height(HEIGHT)
    if shown.most is not None:
        made = made.min(0).max(shown.most)
    for number, (legend, query) in enumerate(shown.queries.items()):
        asked = Dataquery().expr(checked(query, where)).legend_format(legend or "__auto")
        made = made.with_target(over_time(asked.ref_id(chr(ord("A") + number)), shown.kind))
    return made


def over_time(asked: Dataquery, kind: Kind) -> Dataquery:
    """A query for all of the chosen time, or for what a panel that has no time axis shows: the present value."""
    if kind == "table":
        return asked.instant().format(PromQueryFormat.TABLE)
    return asked.instant() if kind in ("stat", "bargauge") else asked.range()


def lines(shown: Shown) -> timeseries.Panel:
    """Values over time."""
    legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    made = timeseries.Panel().legend(legend)
    return made.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(30) if shown.stacked else made


def states(_shown: Shown) -> statetimeline.Panel:
    """When something was so: a band a series."""
    return statetimeline.Panel().show_value(Visibility.NEVER).merge_values(merge_values=True)


KINDS: Mapping[Kind, Callable[[Shown], Panel]] = {
    "timeseries": lines,
    "state-timeline": states,
    "stat": lambda _: stat.Panel(),
    "bargauge": lambda _: bargauge.Panel().orientation(VizOrientation.HORIZONTAL),
    "table": lambda _: table.Panel(),
}
"""How a panel shows its values."""


def checked(query: str, where: str) -> str:
    """A query with what its placeholders stand for.

    Raises:
        MonitoringError: a metric or a label in it does not exist.
    """
    for mark, stands_for in STANDS_FOR.items():
        query = query.replace(mark, stands_for)
    known = known_metrics()
    for metric in metrics_of(query):
        if metric not in known:
            raise MonitoringError(f"{where}: unknown metric {metric}; allowed: those of `pg monitoring metrics`")
    for metric, label in labels_of(query):
        allowed = known[metric]
        if allowed is not None and label not in allowed:
            raise MonitoringError(f"{where}: {metric} has no label {label}; allowed: {', '.join(allowed) or 'none'}")
    return query


def known_metrics() -> Mapping[str, tuple[str, ...] | None]:
    """Every series that there can be → its labels; None: not known (Prometheus' own, recording rules)."""
    found: dict[str, tuple[str, ...] | None] = dict.fromkeys(PROMETHEUS)
    recorded = [
        rule["record"] for file in rules.files() for rule in rules.rules_of(rules.read(file)) if "record" in rule
    ]
    found |= dict.fromkeys(recorded)
    for name, it in METRICS.items():
        names = [f"{name}{suffix}" for suffix in SUFFIXES] if it.kind == "histogram" else [name]
        found |= dict.fromkeys(names, (*it.labels, "le", "job", "instance"))
    return found


def metrics_of(query: str) -> list[str]:
    """The names of series in a query, in order."""
    selected = [name for name, _ in SELECTOR.findall(query)]
    bare = GROUPING.sub(" ", LITERAL.sub(" ", SELECTOR.sub(" ", query)))
    return [*selected, *(name for name in NAME.findall(bare) if name not in WORDS)]


def labels_of(query: str) -> Iterator[tuple[str, str]]:
    """(series, label) of every condition in a query."""
    for name, conditions in SELECTOR.findall(query):
        for condition in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r"\"[^\"]*\"", "", conditions)):
            yield name, condition
