"""Nodes with clocks of their own: the error is told; one that is too large, or a gap in the records, proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving_ground.bench import contract, rundir
from proving_ground.reports.recovery import page, results, terminal
from proving_ground.reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import Knobs, Record, make
from tests.reports.rewritten import rewrite


def with_events(folder: Path, *more: Record, mutant: str = "") -> Analysis:
    """The right history (or one that is wrong) with more events of the harness."""
    run: rundir.RunDir = make(folder, Knobs(mutant=mutant, at="f01") if mutant else Knobs())

    def each(records: list[Record]) -> list[Record]:
        t = max(record["t"] for record in records if record["event"] == "step")
        return [*records, *({"t": t, "source": "harness", **it} for it in more)]

    return results.analyse(rewrite(run, each))


def clock(node: str, error_s: float) -> Record:
    return {"event": "node_clock", "node": node, "offset_s": 86_400.0, "error_s": error_s, "wall_ahead_s": 0.0}


GAP: Record = {
    "event": "gap", "trial": "t001", "node": "n2", "files": ["events/t001.n2.0.jsonl", "logs/t001.n2.0.log"],
    "from": 10, "to": 90, "why": "these bytes never came",
}  # fmt: skip


def of(analysis: Analysis, check: str) -> list[tuple[str, str]]:
    return [(v["verdict"], v["why"]) for v in analysis.verdicts if v["check"] == check]


def test_on_one_clock_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert of(with_events(tmp_path), "clocks") == []


def test_the_error_of_each_node_is_a_figure_and_the_worst_is_told(tmp_path: Path) -> None:
    analysis = with_events(tmp_path, clock("n1", 0.0001), clock("n2", 0.0004), clock("n2", 0.0002))
    assert of(analysis, "clocks") == [("pass", "moments of different nodes are right to 0.4 ms")]
    found = {it["where"]["node"]: it["values"] for it in analysis.figures if it["name"] == "clock_error"}
    assert found == {"n1": [0.1], "n2": [0.4, 0.2]}


def bounds(analysis: Analysis) -> dict[str, set[float]]:
    """Name of a recovery's figure → the clocks' error bounds that it carries."""
    found: dict[str, set[float]] = {}
    for it in analysis.figures:
        if "clock_error_s" in it:
            found.setdefault(it["name"], set()).add(it["clock_error_s"])
    return found


def test_every_figure_of_a_recovery_carries_the_error_bound_of_the_clocks(tmp_path: Path) -> None:
    """0 on one clock; else the worst that was told of any node, and the report says it."""
    alone = with_events(tmp_path / "one")
    assert bounds(alone).keys() == set(contract.RECOVERY) - {"fault_cost"}
    assert set.union(*bounds(alone).values()) == {0}
    assert "by their clocks" not in page.html(alone) + shown(alone)
    apart = with_events(tmp_path / "apart", clock("n1", 0.0001), clock("n2", 0.0004), clock("n2", 0.0002))
    assert bounds(apart) == {name: {0.0004} for name in bounds(alone)}
    said = "Times between nodes are right to 0.4 ms by their clocks."
    assert said in page.html(apart).replace("\xa0", " ")
    assert said in shown(apart)
    assert bounds(results.analyse(apart.run, node_hour=2.0))["fault_cost"] == {0.0004}


def shown(analysis: Analysis) -> str:
    """What the terminal says below its table."""
    return "\n".join(line.plain for line in terminal.footer(analysis, "report.html"))


def test_an_error_as_large_as_what_it_should_prove_is_no_pass(tmp_path: Path) -> None:
    analysis = with_events(tmp_path, clock("n1", 0.5))
    ((verdict, why),) = of(analysis, "clocks")
    assert (verdict, why.partition(",")[0]) == ("unknown", "moments of different nodes are right to 5e+02 ms")


@pytest.mark.parametrize("mutant", ["", "drop_samples"])
def test_where_records_never_came_nothing_is_proven_neither_good_nor_bad(tmp_path: Path, mutant: str) -> None:
    analysis = with_events(tmp_path, GAP, mutant=mutant)
    assert of(analysis, "recorded")[0][0] == "unknown"
    told = {v["verdict"] for v in analysis.verdicts if v["where"].get("fault")}
    assert told == {"unknown"}
    assert not {"recovered", "wrong"} & {trial["outcome"] for trial in analysis.trials}
    ((_, why), *_) = of(analysis, "exactly_once")
    assert why.startswith(
        "records of n2 never arrived (events/t001.n2.0.jsonl): later ones of the same file did; else: "
    )


def test_a_log_that_is_not_whole_proves_no_less(tmp_path: Path) -> None:
    analysis = with_events(tmp_path, {**GAP, "files": ["logs/t001.n2.0.log"]})
    assert {trial["outcome"] for trial in analysis.trials} == {"recovered"}
