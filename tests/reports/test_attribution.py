"""Every lost percent is booked on its cause: each cause is planted alone, and must be found with its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.reports.figures import pick, pick_all
from proving_ground.reports.scaling import attribution, results, words
from proving_ground.reports.scaling.measure import between_s, stall_s
from proving_ground.reports.scaling.results import Analysis
from tests.reports.synthetic import Knobs, make

QUIET: dict[str, Any] = {
    "nodes": (1, 2, 4), "scalings": ("weak",), "bars": {}, "steps": 24, "noise": 0.0005, "jitter": 0.0,
    "comm": {1: 0.0, 2: 0.02, 4: 0.02},
}  # fmt: skip
PLANTED_S = 0.02  # in steps of 0.1 s


def planted(folder: Path, cause: str, seconds: float = PLANTED_S, **knobs: Any) -> Analysis:
    return results.analyse(make(folder, Knobs(**{**QUIET, "plant": {cause: seconds}, **knobs})))


def lost(analysis: Analysis, part: str, nodes: int = 4) -> float:
    found = pick(analysis.figures, "lost", part=part, nodes=nodes, scaling="weak")
    return float(found["median"]) if found else 0.0


def verdicts(analysis: Analysis, check: str) -> list[str]:
    return [v["verdict"] for v in analysis.verdicts if v["check"] == check]


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("cause", ["comm", "data", "wait", "checkpoint", "cpu", "optimizer", "between"])
def test_a_planted_cause_is_found_with_its_size(tmp_path: Path, cause: str, nodes: int) -> None:
    healthy = results.analyse(make(tmp_path / "healthy", Knobs(**QUIET)))
    sick = planted(tmp_path / "sick", cause)
    step = pick(sick.figures, "step_time", nodes=nodes)
    assert step is not None
    truth = 100 * 1000 * PLANTED_S / step["median"]
    kept = dict.fromkeys(attribution.CAUSES, 0.3) | {
        "comm": 0.8
    }  # points; a longer step makes the other shares smaller
    for part in attribution.CAUSES:
        grew = lost(sick, part, nodes) - lost(healthy, part, nodes)
        assert grew == pytest.approx(truth if part == cause else 0, abs=kept[part]), part
    assert set(verdicts(sick, "explained")) == {"pass"}
    assert words.lost_parts(sick, sick.cells[-1])[0][0] == cause


def test_what_no_part_explains_is_shown_and_fails(tmp_path: Path) -> None:
    sick = planted(tmp_path, "rest", 0.005)
    assert lost(sick, "rest") == pytest.approx(100 * 0.005 / 0.112, abs=0.5)
    assert verdicts(sick, "explained") == ["fail", "fail"]
    assert "are unexplained, more than ±2" in " ".join(words.reasons(sick, "fail"))


def test_work_in_every_second_step_is_no_accident(tmp_path: Path) -> None:
    sick = planted(tmp_path, "second", 0.005)
    assert lost(sick, "stall") == pytest.approx(0, abs=0.1)
    assert verdicts(sick, "explained") == ["fail", "fail"]


@pytest.mark.parametrize(("seconds", "found"), [(0.001, "pass"), (0.01, "unknown")])
def test_one_gap_of_a_run_is_named_and_a_large_one_proves_nothing(tmp_path: Path, seconds: float, found: str) -> None:
    sick = planted(tmp_path, "stall", seconds)
    assert lost(sick, "rest") == pytest.approx(0, abs=0.3)
    assert lost(sick, "stall") == pytest.approx(100 * seconds / (0.102 + seconds), abs=0.6)
    assert verdicts(sick, "explained") == [found, found]


def test_a_small_rest_is_no_reason_to_doubt(tmp_path: Path) -> None:
    assert verdicts(planted(tmp_path, "rest", 0.001), "explained") == ["pass", "pass"]


def test_a_trainer_without_parts_claims_nothing(tmp_path: Path) -> None:
    bare = results.analyse(make(tmp_path, Knobs(**QUIET, bare=True)))
    assert verdicts(bare, "explained") == []
    assert pick_all(bare.figures, "lost") == []


def test_causes_add_up_to_the_loss_exactly(tmp_path: Path) -> None:
    noisy = planted(tmp_path, "wait", jitter=0.05, noise=0.02)
    kept = pick(noisy.figures, "efficiency", nodes=4)
    parts = [f["values"] for f in pick_all(noisy.figures, "lost", nodes=4)]
    assert kept is not None
    for repeat, value in enumerate(kept["values"]):
        assert sum(values[repeat] for values in parts) == pytest.approx(100 - value, abs=1e-6)


MARKS = {"begin_t": [1.0, 2.5], "comm_t": [1.8, 3.2], "optimizer_t": [1.9, 3.3], "checkpoint_s": [0.0, 0.1]}


@pytest.mark.parametrize(
    ("changed", "judged", "found"),
    [
        ({}, None, [0.1, 0.5 + 0.2]),  # a step ends at 2.0 and the next begins at 2.5; its checkpoint is none of it
        ({}, 1, [0.1, 0.2]),  # the model was judged in between
        ({}, 0, [0.1, 0.5 + 0.2]),
        ({"comm_t": [1.8, 3.4]}, None, [0.1, 0.5 + 0.1]),  # local updates: parameters are exchanged after the optimizer
        ({"begin_t": [1.0, 1.9], "optimizer_t": [1.9, 3.5]}, None, [0.1, 0.0]),  # a device's clock, a little off
        ({"optimizer_t": [np.nan, 3.3]}, None, [np.nan, 0.5 + 0.2]),
        ({"begin_t": [np.nan, np.nan]}, None, [0.1, 0.2]),
        ({"checkpoint_s": [np.nan, np.nan]}, None, [0.1, 0.5 + 0.3]),
    ],
)
def test_what_lies_between_two_steps(changed: dict[str, Any], judged: int | None, found: list[float]) -> None:
    both = {key: [*values, *values] for key, values in (MARKS | changed).items()}
    process = ["n1.0", "n1.0", "n2.0", "n2.0"]  # one does not go on where the other ended
    frame = pd.DataFrame({"process": process, "t": [2.0, 3.6] * 2, "step": [1, 2] * 2, **both})
    after = pd.Series([row % 2 == judged for row in range(4)])
    assert between_s(frame, after).to_list() == pytest.approx([*found, *found], nan_ok=True)


def open_for(*seconds: float) -> pd.DataFrame:
    """Steps of one process of 0.5 s of parts each, and of so much beside them."""
    ends, parts = np.cumsum(np.array(seconds) + 0.5), ("data", "forward", "backward", "comm", "optimizer")
    rows = {"process": "n1.0", "step": range(1, 1 + len(ends)), "wall_s": np.diff(ends, prepend=np.nan)}
    return pd.DataFrame(rows | {f"{part}_s": 0.1 for part in parts} | {"between_s": 0.0, "checkpoint_s": np.nan})


@pytest.mark.parametrize(
    ("seconds", "judged", "found"),
    [
        ((0, 0, 0.1, 0, 0), (), [0, 0, 0.1, 0, 0]),
        ((0, 0.1, 0), (), [0, 0.1, 0]),  # of two gaps the smaller is the usual one
        ((0, 0.05, 0.05, 0.05, 0.05), (), [0, 0, 0, 0, 0]),  # in every step: unexplained
        ((0, 0.05, 0.15, 0.05, 0.05), (), [0, 0, 0.1, 0, 0]),
        ((0, 0, 0.1, 0, 0.1, 0, 0), (), [0, 0, 0.1, 0, 0.1, 0, 0]),
        ((0, 0, 0.1, 0, 0.1, 0, 0.1), (), [0, 0, 0, 0, 0, 0, 0]),  # three of seven steps: work that comes back
        ((0, 0, 0.001, 0, 0), (), [0, 0, 0, 0, 0]),
        ((0, 0, 0.1, 0, 0), (2,), [0, 0, 0, 0, 0]),  # the model was judged before the third
        ((0, -0.1, -0.1, 0.05, -0.1), (), [0, 0, 0, 0.05, 0]),
    ],
)
def test_only_single_steps_stand_still(seconds: Any, judged: Any, found: list[float]) -> None:
    steps = open_for(*seconds)
    assert stall_s(steps, (steps["step"] - 1).isin(judged)).to_list() == pytest.approx(found)


def test_without_all_parts_nothing_is_said_to_stand_still() -> None:
    bare = open_for(0, 0, 0.1, 0).assign(forward_s=np.nan)
    assert stall_s(bare, bare["step"] < 0).isna().all()


def test_throttling_that_cost_nothing_is_not_booked(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(**{**QUIET, "plant": {"cpu": 0.0}}))
    assert lost(results.analyse(run), "cpu") == 0.0


def steps(arrivals: dict[int, list[float]], **columns: list[float]) -> pd.DataFrame:
    """Two steps of as many ranks as there are arrivals in each."""
    rows = []
    for number, row in arrivals.items():
        for rank, arrival in enumerate(row):
            own = {name: values[rank] for name, values in columns.items()}
            rows.append(
                {"process": f"n{rank}", "step": number, "t": arrival + 1, "begin_t": 0.0, "backward_t": arrival, **own}
            )
    return pd.DataFrame(rows)


ZERO = {"data_s": [0.0] * 4, "forward_s": [0.0] * 4, "optimizer_s": [0.0] * 4, "checkpoint_s": [0.0] * 4}


def test_waiting_for_a_late_loader_is_data_not_straggling() -> None:
    late = steps(
        {1: [1.0, 1.0, 1.0, 1.5], 2: [2.0, 2.0, 2.0, 2.5]}, **{**ZERO, "data_s": [0.1, 0.1, 0.1, 0.6]},
        backward_s=[0.9] * 4, comm_s=[0.7, 0.7, 0.7, 0.2],
    )  # fmt: skip
    found = attribution.causes(late, 0)
    assert found["data"] == pytest.approx(0.1 + 0.5)
    assert found["wait"] == pytest.approx(0)
    assert found["comm"] == pytest.approx(0.2)


def test_waiting_for_a_slow_node_is_straggling() -> None:
    slow = steps(
        {1: [1.0, 1.0, 1.0, 1.5], 2: [2.0, 2.0, 2.0, 2.5]}, **ZERO,
        backward_s=[1.0, 1.0, 1.0, 1.5], comm_s=[0.7, 0.7, 0.7, 0.2],
    )  # fmt: skip
    found = attribution.causes(slow, 0)
    assert found["wait"] == pytest.approx(0.5)
    assert found["backward"] == pytest.approx(1.0)


@pytest.mark.parametrize("broken", ["comm_s", "backward_t"])
def test_missing_marks_give_no_causes(broken: str) -> None:
    made = steps({1: [1.0] * 4, 2: [2.0] * 4}, **ZERO, backward_s=[1.0] * 4, comm_s=[0.1] * 4)
    assert attribution.causes(made, 0)
    made.loc[3, broken] = np.nan
    assert attribution.causes(made, 0) == {}


def test_a_step_recorded_twice_gives_no_causes() -> None:
    made = steps({1: [1.0] * 4, 2: [2.0] * 4}, **ZERO, backward_s=[1.0] * 4, comm_s=[0.1] * 4)
    assert attribution.causes(pd.concat([made, made.iloc[:1]]), 0) == {}


@given(
    st.dictionaries(st.sampled_from(attribution.CAUSES[:-1]), st.floats(-0.3, 0.5), min_size=1),
    st.floats(-0.5, 2.0),
)
def test_booking_throttling_changes_no_sum_and_invents_nothing(parts: dict[str, float], throttled: float) -> None:
    parts.pop("cpu", None)
    booked = attribution.book_throttling(parts, throttled)
    assert sum(booked.values()) == pytest.approx(sum(parts.values()), abs=1e-9)
    assert 0 <= booked["cpu"] <= max(0.0, throttled)
    assert all(min(0.0, before) <= booked[part] <= max(0.0, before) for part, before in parts.items())


def test_throttling_is_not_booked_on_what_the_link_alone_exposes() -> None:
    booked = attribution.book_throttling({"comm": 0.3, "rest": 0.0}, 0.25, link=0.2)
    assert booked["cpu"] == pytest.approx(0.1)
    assert booked["comm"] == pytest.approx(0.2)


def test_a_checkpoint_at_the_end_of_the_window_is_a_checkpoint() -> None:
    """Rank 0 saves after the last step alone: nobody waits for it, and yet the window ends later."""
    made = steps(
        {1: [1.0] * 4, 2: [2.0] * 4, 3: [3.0] * 4}, **{**ZERO, "checkpoint_s": [0.0] * 4},
        backward_s=[1.0] * 4, comm_s=[0.1] * 4,
    )  # fmt: skip
    made.loc[(made["step"] == 3) & (made["process"] == "n0"), ["t", "checkpoint_s"]] = [4.5, 0.5]
    assert attribution.causes(made, 1)["checkpoint"] == pytest.approx(0.5 / 2)
