"""The matrix's headline: the first run of each cell counts, a disturbed one supports no verdict, gaps are seen."""

from __future__ import annotations

from typing import Any

from tests.validations import headline

Runs = list[dict[str, Any]]


def run(above: float = 1.0, efficiency: float = 97.0, error: float = 1.0, **disturbed: str) -> dict[str, Any]:
    """A run on 1, 2 and 8 nodes; `n8="steal"` disturbs it there."""
    one = {"step_ms": [90.0]}
    size = {
        "step_ms": [100.0], "bound_ms": 99.0, "above_bound_percent": [above], "efficiency_percent": [efficiency],
        "efficiency_bound_percent": 94.0, "prediction_error_percent": [error],
    }  # fmt: skip
    sizes: dict[str, dict[str, Any]] = {"1": one, "2": dict(one), "8": size}
    for nodes, why in disturbed.items():
        sizes[nodes.removeprefix("n")] = sizes[nodes.removeprefix("n")] | {"disturbed": [why]}
    return {"sizes": sizes}


def matrix(links: tuple[float, ...] = (), **cells: Runs) -> dict[str, Any]:
    """Cells of one model and bucket, each with a link rate of its own; one without runs is a gap."""
    rates = dict(zip(cells, links or range(100, 900, 100), strict=False))
    about = {"workload": "resnet18", "bucket_mb": 4, "compression": "none"}
    made = {name: {**about, "link_mbps": rates[name], "runs": runs} for name, runs in cells.items() if runs}
    return {"plan": {"rounds": 3, "cells": [*cells]}, "cells": made}


def test_the_first_run_counts_however_often_a_cell_was_run_again() -> None:
    document = matrix(a=[run(above=6.7), run(above=1.0), run(above=0.5)], b=[run(above=2.0), run(above=2.0)])
    assert "1 of 2 sizes within 5 %, worst +6.7 % (a, 8 nodes); 0 cannot tell" in headline.closeness(document)
    assert headline.basis(document).startswith("basis: the first run of each cell (n = 1) of 2; 0 of 6 sizes")


def test_once_all_cells_have_three_the_median_of_the_first_three_counts() -> None:
    document = matrix(a=[run(above=6.7), run(above=1.0), run(above=0.5), run(above=9.0)], b=[run(above=2.0)] * 3)
    assert "2 of 2 sizes within 5 %, worst +2.0 % (b, 8 nodes)" in headline.closeness(document)
    assert headline.basis(document).startswith("basis: the first 3 runs of each cell (n = 3) of 2")
    assert "| a | 8 | 3 | 0 | 100 | 99 | +1.0 % |" in headline.table(document)


def test_a_disturbed_run_supports_no_verdict_and_the_next_does_not_stand_in_for_it() -> None:
    document = matrix(a=[run(above=18.4, n8="steal"), run()], b=[run()])
    assert "1 of 1 sizes within 5 %" in headline.closeness(document)
    assert headline.closeness(document).endswith("1 cannot tell")
    assert "1 of 6 sizes were disturbed" in headline.basis(document)
    assert "| a | 8 | 1 | 1 | – | 99 | – | – | 94.0 % | – |" in headline.table(document)


def test_a_missed_target_is_counted_once_and_only_where_it_can_be_told() -> None:
    assert headline.missed(matrix(a=[run()], b=[])) == (0, 0)
    assert headline.missed(matrix(a=[run(above=18.4)], b=[run()])) == (1, 0)
    assert headline.missed(matrix(a=[run(above=18.4, n8="steal")])) == (0, 3)
    assert headline.missed(matrix(a=[run(error=9.0)])) == (2, 0), "mean and worst"
    assert headline.missed(matrix(a=[run(efficiency=91.0)])) == (1, 0)


def test_a_figure_that_rests_on_a_disturbed_size_is_unknown() -> None:
    base, two = matrix(a=[run(n1="steal")]), matrix(a=[run(n2="steal")])
    assert headline.efficiencies(base)[2].endswith("≥93 %: 1 cannot tell")
    assert "1 of 1 combinations" in headline.efficiencies(two)[2]
    assert headline.predictions(base) == headline.predictions(two) == "prediction: nothing to judge, 1 cannot tell"
    assert "1 of 1 sizes" in headline.closeness(base), "a step needs no other size"


def test_the_efficiency_is_judged_at_the_lowest_link_that_allows_it_disturbed_or_not() -> None:
    slow, fast = run(efficiency=91.5), run(efficiency=93.5)
    document = matrix((200, 400), a=[slow], b=[fast])
    assert "0 of 1 combinations ≥92 %, 0 cannot tell; lowest 91.5 % of 94.0 % (a)" in headline.efficiencies(document)[2]
    document = matrix((200, 400), a=[run(n8="steal")], b=[fast])
    assert headline.efficiencies(document)[2].endswith("1 cannot tell"), "no faster link in its place"
    assert headline.efficiencies(document)[0].endswith("no cell allows it")


def test_errors_of_predictions_are_told_with_the_worst() -> None:
    document = matrix(a=[run(error=1.0)], b=[run(error=-9.0)])
    assert "mean error 5.00 % (target ≤3), worst 9.0 % (target ≤8; b, 8 nodes)" in headline.predictions(document)


def test_gaps_are_seen() -> None:
    document = matrix(a=[run()], b=[], c=[{"failed": "no step", "sizes": {}}])
    document["cells"]["a"]["begun"] = 2
    said = headline.basis(document)
    assert said.endswith("cells not measured: 1; failed runs: 1; runs cut off and begun again: 1")
    assert "| b | – | 0 | – |" in headline.table(document)
    assert "| c | – | 0 | – |" in headline.table(document)
    assert headline.targets(matrix(a=[])).count("\n- ") == 5


def test_a_cell_that_is_refused_today_keeps_what_it_has() -> None:
    document = matrix(a=[run()], b=[])
    assert headline.cells_of(document | {"refused": ["a", "b"]}) == ["a"]
