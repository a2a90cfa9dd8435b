"""Every panel against a real Prometheus that has watched a recorded run; and what makes a dashboard be refused."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from proving_ground.bench.servers import free_port
from proving_ground.monitoring import dashboards, panels, programs, rules
from proving_ground.monitoring.dashboards import FOLDER, checked, labels_of, metrics_of
from proving_ground.monitoring.exporter import Watched, serving
from proving_ground.monitoring.metrics import METRICS
from proving_ground.monitoring.mistakes import MonitoringError
from proving_ground.monitoring.panels import ANNOTATIONS, DASHBOARDS, Shown

pytestmark = pytest.mark.timeout(300)  # a Prometheus comes up and watches a run

RECORDED = Path(__file__).parent / "recorded"
CHOSEN = {"$run": ".*", "$trial": ".*", "$__rate_interval": "4s"}  # as Grafana would put them in
SECONDS, PARTS = 8.0, 16  # over which the recording is played
PANELS = [(name, it) for name, (_, found) in DASHBOARDS.items() for it in found]


def queries() -> list[tuple[str, str]]:
    """(where, query) of all panels and of the faults that are shaded."""
    found = [(f"{name}: {it.title}", query) for name, it in PANELS for query in it.queries.values()]
    return [*found, ("annotation faults", ANNOTATIONS["faults"][0])]


def recorded() -> list[tuple[float, str, dict[str, Any]]]:
    """(t, file, event) of the recording, and what is made up beside it, in the order of time."""
    files = sorted((RECORDED / "events").glob("*.jsonl"))
    rows = [(it["t"], file.name, it) for file in files for it in map(json.loads, file.read_text().splitlines())]
    last, head = max(t for t, _, _ in rows), "t001.n1.0.jsonl"
    return sorted([*rows, *made_up(last, head)], key=lambda row: row[0])


def made_up(t: float, head: str) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """MADE UP: what the recorded machine did not have or the recorded trainer did not tell."""
    gpu = {"index": 0, "utilisation": 41, "memory_used": 3e9, "memory_total": 8e10, "power_w": 211.5,
           "temperature_c": 54, "sm_mhz": 1755}  # fmt: skip
    yield t, "harness.jsonl", {"t": t, "event": "machine", "trial": "t001", "gpus": [gpu]}
    yield t, head, {"t": t, "event": "eval", "step": 170, "split": "test", "metric": "accuracy", "value": 0.9}
    yield t, head, {"t": t, "event": "collective", "op": "all_reduce", "bytes": 1024, "seconds": 0.1, "busbw": 1e8}
    yield t, head, {"t": t, "event": "step", "step": 171, "samples": 32, "wall_s": time.time()}
    yield t, "harness.jsonl", {"t": t, "event": "queued", "why": "Resources", "wait_s": 1800.0}
    yield t + 0.01, head, {"t": t + 0.01, "event": "phase", "phase": "evaluation", "step": 171}
    yield t, head, {"t": t, "event": "error", "message": "m", "kind": "k" * 300, "fatal": False}  # too long a label


class Prometheus:
    """The real one, scraping ports twice a second, with the rules in their live variant."""

    def __init__(self, folder: Path, *scraped: int) -> None:
        self.url = f"http://127.0.0.1:{free_port(0)}"
        (folder / "rules").mkdir()
        rules.write_live(folder / "rules", 60.0)
        targets = [f"127.0.0.1:{port}" for port in scraped]
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(folder / "rules" / "*.yaml")],
            "scrape_configs": [{"job_name": "x", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        argv = [programs.program("prometheus"), f"--config.file={folder}/prometheus.yaml",
                f"--storage.tsdb.path={folder}/data", f"--web.listen-address={self.url[7:]}"]  # fmt: skip
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)

    def ask(self, path: str, **asked: object) -> Any:
        where = f"{self.url}{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(where, timeout=20) as answer:  # noqa: S310 - loopback
            return json.load(answer) if path != "/-/ready" else None

    def ready(self) -> None:
        for _ in range(300):
            try:
                self.ask("/-/ready")
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise TimeoutError

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    """(Prometheus, when it began to watch): the recording is played to the exporter, which it scrapes."""
    if programs.missing():
        pytest.skip(f"not installed: {', '.join(programs.missing())}")
    folder = tmp_path_factory.mktemp("prometheus")
    run = folder / "runs" / "recorded" / "run"
    (run / "events").mkdir(parents=True)
    shutil.copy(RECORDED / "provenance.json", run)
    plan = json.loads((RECORDED / "plan.json").read_text())
    plan["trials"][0]["link_mbps"] = 1000  # MADE UP
    (run / "plan.json").write_text(json.dumps(plan))
    search, load = made_search(folder / "runs"), made_load(folder / "runs")
    exporter, *others = Watched(run, price=2.5), Watched(search), Watched(load)
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(serving(it, "127.0.0.1", 0)) for it in (exporter, *others)]
        prometheus, began = Prometheus(folder, *ports), time.time()
        stack.callback(prometheus.stop)
        prometheus.ready()
        play(run, exporter, folder, lambda part: play_others(part, *others))
        yield prometheus, began


def made_search(runs: Path) -> Path:
    """MADE UP: a search that has begun, with a budget of both kinds."""
    path = runs / "digits" / "search"
    (path / "events").mkdir(parents=True)
    asked = {"algorithm": "asha", "metric": "accuracy", "mode": "max", "budget_s": 600, "budget_steps": 1000}
    now = {"t": time.monotonic(), "wall_s": time.time()}
    (path / "search.json").write_text(json.dumps({"search": asked}))
    (path / "provenance.json").write_text(json.dumps(now))
    sitting = {**now, "event": "sitting", "planned": 3}
    append(path / "trials.jsonl", sitting, {"event": "started", "trial": "t001"})
    return path


def made_load(runs: Path) -> Path:
    """MADE UP: a load of two users on two replicas, which was told how long requests take."""
    path = runs / "load" / "load"
    (path / "events").mkdir(parents=True)
    told = [{"figure": name, "users": None, "seconds": 0.04} for name in ("p99", "longest")]
    about = {"orders": {"levels": [2]}, "model": "digits/1", "engine": "azureml", "told": told}
    (path / "load.json").write_text(json.dumps(about))
    (path / "provenance.json").write_text(json.dumps({"t": time.monotonic(), "wall_s": time.time()}))
    append(path / "events" / "replicas.jsonl", {"event": "replicas", "planned": 2, "up": 1})
    append(path / "events" / "requests.jsonl", {"event": "level", "index": 0})
    return path


def append(file: Path, *events: dict[str, Any]) -> None:
    """Append events of this moment."""
    with file.open("a") as out:
        out.writelines(json.dumps({"t": time.monotonic(), **it}) + "\n" for it in events)


def play_others(part: int, search: Watched, load: Watched) -> None:
    """A step, a value, and ten requests, of which one fails; one stays in flight."""
    append(search.path / "events" / "t001.n1.0.jsonl", {"event": "step", "step": part + 1, "samples": 1})
    append(search.path / "trials.jsonl", {"event": "reported", "trial": "t001", "step": part + 1, "value": 0.1 * part})
    requests = [10 * part + it for it in range(10)]
    begun = [{"event": "begin", "number": it} for it in requests]
    ended = [{"event": "end", "number": it, "seconds": 0.02 * (it % 4), "status": 200, "error": ""} for it in requests]
    append(load.path / "events" / "requests.jsonl", *begun, *ended[:8], {**ended[8], "status": 500})
    search.poll()
    load.poll()


def play(run: Path, exporter: Watched, checkpoints: Path, others: Callable[[int], None]) -> None:
    """Append the recording to the run's files, part by part."""
    rows = recorded()
    for part in range(PARTS):
        others(part)
        for _, name, it in rows[len(rows) * part // PARTS : len(rows) * (part + 1) // PARTS]:
            moved = {**it, "path": f"{checkpoints}/{it['path'].rpartition('/')[2]}"} if "path" in it else it
            with (run / "events" / name).open("a") as file:
                file.write(json.dumps(moved) + "\n")
        exporter.poll()
        exporter.board.set("gpu_ecc_errors_total", ("host", "0", "true"), 2)  # MADE UP, as the driver would tell
        exporter.board.set("gpu_xid_errors_total", ("host", "0", "79"), 1)  # MADE UP
        time.sleep(SECONDS / PARTS)
    time.sleep(1.5)


@pytest.mark.parametrize(("where", "query"), queries(), ids=[f"{where} {n}" for n, (where, _) in enumerate(queries())])
def test_every_query_of_every_panel_returns_series(watched: tuple[Prometheus, float], where: str, query: str) -> None:
    prometheus, began = watched
    asked = checked(query, where)
    for variable, value in CHOSEN.items():
        asked = asked.replace(variable, value)
    found = prometheus.ask("/api/v1/query_range", query=asked, start=began, end=time.time(), step=0.5)
    series = found["data"]["result"]
    assert series, f"{where}: {asked}"
    values = [float(value) for it in series for _, value in it["values"]]
    assert any(value == value for value in values), "not only NaN"  # noqa: PLR0124 - NaN is not itself


@pytest.mark.parametrize(
    ("dashboard", "name", "label"),
    [
        ("training", "run", "recorded/run"),
        ("training", "trial", "t001"),
        ("search", "run", "digits/search"),
        ("search", "trial", "t001"),
        ("serving", "run", "load/load"),
    ],
)
def test_runs_and_trials_can_be_chosen(
    watched: tuple[Prometheus, float], dashboard: str, name: str, label: str
) -> None:
    prometheus, began = watched
    document = json.loads(dashboards.text(dashboard))
    variable = next(it for it in document["templating"]["list"] if it["name"] == name)
    series = re.match(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
    assert series
    where = {"match[]": series[1].replace("$run", ".*"), "start": began, "end": time.time()}
    found = prometheus.ask(f"/api/v1/label/{series[2]}/values", **where)
    assert found["data"] == [label]


def test_a_panel_that_asks_for_nothing_would_be_seen(watched: tuple[Prometheus, float]) -> None:
    """The mutant: a metric that exists, a condition that is never true."""
    with pytest.raises(AssertionError, match="no such"):
        test_every_query_of_every_panel_returns_series(watched, "mutant", 'training_loss{trial="no such"}')


def test_every_metric_is_on_a_dashboard() -> None:
    shown = {name.removesuffix(end) for _, query in queries() for name in metrics_of(query) for end in
             ("", "_bucket", "_sum", "_count")}  # fmt: skip
    by_rules = {name for file in rules.files() for rule in rules.rules_of(rules.read(file))
                if rule.get("record") in shown for name in metrics_of(rule["expr"])}  # fmt: skip
    assert [name for name in METRICS if name not in shown | by_rules] == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("rate(training_los{@job}[@rate])", "unknown metric training_los; allowed: those of"),
        ("sum by (node) (node_load1) / nodes_total", "unknown metric nodes_total"),
        ("training_step_seconds{@job}", "unknown metric training_step_seconds;"),  # a histogram has no such series
        ("job:nothing:rate5m", "unknown metric job:nothing:rate5m"),
        ('training_loss{@job, node="n1"}', "training_loss has no label node; allowed: run, trial"),
        ("gpu_power_watts{@run}", "gpu_power_watts has no label run; allowed: node, gpu"),
    ],
)
def test_a_wrong_query_is_refused_with_its_place(
    query: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(panels.DASHBOARDS, "gpus", ("GPUs", (Shown("Broken", "s", {"": query}),)))
    with pytest.raises(MonitoringError, match=r"dashboard gpus, panel 'Broken': ") as told:
        dashboards.write(tmp_path)
    assert message in str(told.value)
    assert list(tmp_path.iterdir()) == [], "all of them or none"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("up", ["up"]),
        ('a_total{x="b c"}', ["a_total"]),
        ("max by (run, le) (rate(a_bucket[5m])) / on (run) group_left(c) b", ["a_bucket", "b"]),
        ("time() - a > bool 1.5e3 or b unless c offset 5m", ["a", "b", "c"]),
        ("histogram_quantile(0.5, sum by (le) (x:y:z))", ["x:y:z"]),
    ],
)  # fmt: skip
def test_the_metrics_of_a_query_are_found(query: str, names: list[str]) -> None:
    assert metrics_of(query) == names


def test_the_labels_of_a_query_are_found() -> None:
    assert list(labels_of('a{b="c=d", e!~"f"} + g{h=~"i"}')) == [("a", "b"), ("a", "e"), ("g", "h")]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_json_is_what_grafana_expects(name: str) -> None:
    document = json.loads(dashboards.text(name))
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))
    assert again == document, "the SDK's model of Grafana's schema takes all of it"
    places = [tuple(it["gridPos"].values()) for it in document["panels"]]
    assert len(set(places)) == len(places), "no panel lies on another"
    assert {it["datasource"]["uid"] for it in document["panels"]} == {"${source}"}
    assert [it["refId"] for panel in document["panels"] for it in panel["targets"]].count("") == 0
    assert document["uid"] == f"proving-ground-{name}"


def test_the_files_are_those_that_would_be_made_now(tmp_path: Path) -> None:
    made = {file.name: file.read_text() for file in dashboards.write(tmp_path)}
    assert {file.name: file.read_text() for file in FOLDER.glob("*.json")} == made, "pg monitoring dashboards"


def test_a_rate_of_seconds_is_a_share() -> None:
    """Seconds a second have no unit: two panels said `s`."""
    rates = [it for _, it in PANELS for query in it.queries.values() if re.match(r"rate\(\w+_seconds_total", query)]
    assert {it.title for it in rates if it.unit == "s"} == set()
    assert len(rates) >= 3


def test_a_panel_is_of_a_kind_that_suits_what_it_shows() -> None:
    """What has no course is no time series: names, a share that counts now, what is so or not."""
    kinds = {it.title: it.kind for _, it in PANELS}
    assert {*kinds.values()} == {"timeseries", "stat", "table", "bargauge", "state-timeline"}
    named = [it for _, it in PANELS for query in it.queries.values() if re.match(r"\w+_info\{", query)]
    assert {it.kind for it in named} == {"table"}
    assert kinds["Processes up"] == kinds["Recovery in progress"] == "state-timeline"
    shares = [it for _, it in PANELS if it.kind == "bargauge" and it.unit == "percentunit"]
    assert [it.title for it in shares if it.most is None] == []


@pytest.mark.parametrize("kind", dashboards.KINDS)
def test_a_panel_without_a_time_axis_asks_for_the_present_value(kind: panels.Kind) -> None:
    shown = Shown("x", "s", {"": "node_load1"}, kind=kind)
    made = json.loads(JSONEncoder().encode(dashboards.panel(shown, "x").build()))
    assert made["type"] == kind
    assert made["targets"][0].get("instant", False) is (kind in ("stat", "table", "bargauge"))
    assert made["targets"][0].get("format") == ("table" if kind == "table" else None)
