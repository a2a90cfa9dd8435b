"""A calibration decides links, dilation, models, sizes and repeats: links measure links, within the time allowed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import commands, faithful
from proving_ground.bench.calibrate import busy_cores, calibrate
from proving_ground.bench.cli import parser
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.faithful import Calibration, Pace
from proving_ground.bench.plan import Plan, make_plan
from proving_ground.bench.run import Parts, request, run
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Case, SpecError, Suite, as_document, load_suite, suite_from
from proving_ground.bench.terminal import Terminal
from proving_ground.bench.workloads import WORKLOADS

SLOW = {2: 6000.0, 4: 3900.0, 8: 2200.0}  # Mb/s of bus bandwidth: two cores
FAST = {2: 90_000.0, 4: 60_000.0, 8: 40_000.0}
LIMIT_S = 330.0


def plan(host: Mapping[int, float], suite: Suite | None = None, taken_cores: float = 0.0) -> Plan:
    return make_plan(suite or load_suite("scaling"), FakeCluster(), found=Calibration(host, taken_cores))


def links(made: Plan) -> dict[tuple[str, int], float]:
    """Mb/s at which the links of each case run at each size above one node."""
    return {(it.case, it.nodes): it.link_mbps or 0.0 for it in made.trials if it.nodes > 1}


def hold(made: Plan, host: Mapping[int, float]) -> bool:
    """Whether every link is at most a tenth of what the host moves."""
    return all(rate <= host[nodes] / 10 for (_, nodes), rate in links(made).items())


@pytest.mark.parametrize("host", [SLOW, FAST, {2: 1500.0, 4: 900.0, 8: 500.0}, {2: 400.0, 4: 200.0, 8: 90.0}])
def test_links_of_the_default_suite_never_measure_the_host(host: dict[int, float]) -> None:
    assert hold(plan(host), host)


@pytest.mark.parametrize("host", [SLOW, FAST, {2: 1500.0, 4: 900.0, 8: 500.0}])
def test_the_default_suite_fits_into_its_time(host: dict[int, float]) -> None:
    assert plan(host).estimate_s <= LIMIT_S


def test_without_the_rule_they_would(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(case: Case, _: float) -> Case:
        return case

    monkeypatch.setattr(faithful, "dilated", off)  # the mutant
    monkeypatch.setattr("proving_ground.bench.plan.refusal", lambda *_: "")
    assert not hold(plan(SLOW), SLOW)


def test_a_fast_host_runs_the_models_that_are_asked() -> None:
    made = plan(FAST)
    assert made.refused == ()
    assert {it.case for it in made.trials} == {"digits-96", "resnet50"}, "half the samples leave time for a second look"
    assert {it.dilation for it in made.trials} == {1.0}
    assert set(links(made).values()) == {1000.0}
    once = plan(FAST, replace(load_suite("scaling"), decide=False))
    assert once.decided == ()
    assert {it.case for it in once.trials} == {"digits", "resnet50"}


def test_a_slow_host_dilates_time_lowers_links_takes_a_smaller_model_and_says_so() -> None:
    made = plan(SLOW)
    assert made.refused == ()
    assert {it.case for it in made.trials} == {"digits-96", "resnet18"}
    assert {it.nodes for it in made.trials} == {1, 2, 4, 8}
    assert {it.repeat for it in made.trials if it.case == "resnet18"} == {1, 2, 3}
    assert {it.dilation for it in made.trials if it.case == "resnet18"} == {2.8}
    assert {it.link_mbps for it in made.trials if it.case == "digits-96"} == {220.0}
    digits, resnet18, swapped = made.decided
    assert digits.startswith(
        "digits-96: links of 220 Mb/s instead of 1000: a tenth of the 2200 Mb/s that this host moves"
    )
    assert resnet18.startswith("resnet18: time dilated by 2.8, links of 600 Mb/s run at 214 Mb/s: a tenth of the 2200")
    given_up = "digits-96 instead of digits, digits-96 without strong scaling, resnet18 instead of resnet50: as asked"
    assert swapped.startswith(f"{given_up} the run would take ")
    assert swapped.endswith(" are allowed, 0.8 min of them for a second look")


def test_dilation_changes_no_share_of_the_time() -> None:
    shares = []
    for host in (SLOW, {2: 6000.0, 4: 3900.0, 8: 1800.0}):
        steps = {it.nodes: it.bound["step_s"] for it in plan(host).trials if it.bound and "weak" in it.scaling}
        shares.append({nodes: steps[1] / step_s for nodes, step_s in steps.items()})
    assert shares[0] == pytest.approx(shares[1])
    assert shares[0][8] > 0.96
    assert shares[0][2] > 0.98


def test_time_is_left_for_a_second_look_at_what_really_computes() -> None:
    for made in (plan(FAST), plan(SLOW)):
        again = [it for it in made.trials if it.repeat == 1 and it.compute == "real" and "weak" in it.scaling]
        sizes = {it.nodes for it in again}
        assert made.estimate_s + 3 * sum(it.estimate_s for it in again) <= LIMIT_S
        assert len(again) == len(sizes) > 1, "each size once"


def test_what_a_host_cannot_do_in_time_is_left_out_with_the_reason() -> None:
    made = plan({2: 1500.0, 4: 900.0, 8: 500.0})
    assert {it.repeat for it in made.trials if it.case == "resnet18"} == {1, 2, 3}, "with two nothing is decided"
    left_out = {(it["case"], it["nodes"]): it for it in made.refused}
    assert set(left_out) == {("resnet18", 8)}
    assert left_out["resnet18", 8]["why"].startswith("8 nodes: as asked the run would take")
    assert left_out["resnet18", 8]["bar"] == 0.92, "the report says that it is open"
    assert {it.dilation for it in made.trials if it.case == "resnet18"} == {6.7}, "for links between four nodes"
    assert "resnet18 without strong scaling, resnet18 on at most 4 nodes: as asked" in made.decided[-1]


def test_what_is_left_out_of_all_cases_stays_left_out_where_paced_ones_lose_more() -> None:
    made = plan({2: 500.0, 4: 250.0, 8: 100.0})
    assert "at most 4 nodes instead of 8, resnet18 on at most 2 nodes: as asked" in made.decided[-1]
    assert {(it["case"], it["nodes"]) for it in made.refused} == {("resnet18", 4), ("resnet18", 8), ("digits-96", 8)}


def test_sizes_that_a_prediction_is_made_from_are_measured_and_larger_ones_too() -> None:
    asked = replace(load_suite("scaling"), predict_from=(1, 2))
    made = make_plan(asked, FakeCluster(), found=Calibration({2: 300.0, 4: 180.0, 8: 70.0}))
    assert {it.nodes for it in made.trials} == {1, 2, 4}
    assert {it.block for it in made.trials} == {"a", "b"}


@pytest.mark.usefixtures("two_cores")
def test_fewer_nodes_have_larger_shares_and_are_as_much_faster() -> None:
    slow = {"digits": Pace(step_s=4.0, batch=96, beside_s=16.0, cpus=0.067)}
    made = make_plan(load_suite("scaling"), FakeCluster(), found=Calibration(SLOW, 1.0, slow, took_s=40.0))
    (cpus,) = {it.cpus_per_node or 0.0 for it in made.trials if it.case == "digits-96"}
    assert cpus == pytest.approx(0.6 / (4 + 1)), "four nodes and an idle one"
    (took_s,) = {it.estimate_s for it in made.trials if it.case == "digits-96"}
    assert took_s == pytest.approx((16.0 + 6 * 4.0) * 0.067 / cpus)
    assert request(load_suite("scaling"), made, RunDir(Path("somewhere"))).nodes == 5, "or more would share the cores"


def test_sizes_go_last_and_leave_no_second_look() -> None:
    slow = {"digits": Pace(step_s=3.0, batch=96, beside_s=5.0, cpus=0.133)}
    made = make_plan(load_suite("scaling"), FakeCluster(), found=Calibration({2: 300.0, 4: 180.0, 8: 70.0}, paces=slow))
    assert "3 repeats of digits-96 instead of 4, at most 2 nodes instead of 8: as asked" in made.decided[-1]
    assert {it.nodes for it in made.trials} == {1, 2}
    assert "second look" not in made.decided[-1]


@pytest.mark.usefixtures("two_cores")
def test_where_something_else_uses_cores_a_run_takes_longer_at_most_by_half() -> None:
    assert [faithful.longer(taken) for taken in (0.0, 0.5, 1.0, 2.0)] == [1.0, pytest.approx(4 / 3), 1.5, 1.5]
    suite = load_suite("scaling")
    assert faithful.left_s(suite, Calibration(taken_cores=1.0, took_s=40.0)) == 1.5 * LIMIT_S - 40.0
    assert "are allowed, " in (said := plan(SLOW, taken_cores=1.0).decided[-1])
    assert said.endswith("; more than on an idle machine")


def test_how_long_real_compute_takes_here_decides_what_fits() -> None:
    slow = {"digits": Pace(step_s=1.5, batch=192, beside_s=8.0)}
    made = make_plan(load_suite("scaling"), FakeCluster(), found=Calibration(SLOW, paces=slow))
    assert {it.case for it in made.trials} == {"digits-96", "resnet18"}
    assert made.estimate_s <= LIMIT_S
    assert any("digits-96 without strong scaling, resnet18 instead of resnet50" in it for it in made.decided)
    by_size = {(it.nodes, it.scaling): it.estimate_s for it in made.trials if it.case == "digits-96"}
    assert by_size[2, ("weak",)] == pytest.approx(8.0 + 6 * 1.5 / 2)  # half of the samples
    assert by_size[4, ("weak",)] == pytest.approx(8.0 + 6 * 1.5 / 2)
    assert slow["digits"].trial_s(steps=6, batch=12) == pytest.approx(8.0 + 6 * 1.5 / 16)


def test_strong_scaling_which_has_no_bars_goes_before_repeats_do() -> None:
    slow = {"digits": Pace(step_s=1.5, batch=192, beside_s=6.0)}
    made = make_plan(load_suite("scaling"), FakeCluster(), found=Calibration(SLOW, paces=slow))
    assert "digits-96 without strong scaling" in made.decided[-1]
    assert {it.scaling for it in made.trials if it.case == "digits-96" and it.nodes > 1} == {("weak",)}
    assert {it.repeat for it in made.trials if it.case == "digits-96"} == {1, 2, 3, 4}
    asked = load_suite("scaling")
    barless = replace(asked, cases=tuple(replace(it, efficiency_min={}) for it in asked.cases))
    kept = make_plan(barless, FakeCluster(), found=Calibration(SLOW, paces=slow))
    assert {it.scaling for it in kept.trials if it.nodes > 1} == {("weak",), ("strong",)}


def test_what_a_calibration_took_is_part_of_the_time() -> None:
    suite = load_suite("scaling")
    assert faithful.left_s(suite, Calibration(took_s=45.0)) == LIMIT_S - 45.0
    late = make_plan(suite, FakeCluster(), found=Calibration(SLOW, took_s=100.0))
    assert late.estimate_s <= LIMIT_S - 100.0 < plan(SLOW).estimate_s
    assert faithful.left_s(replace(suite, limit_s=None, decide=False), Calibration(took_s=45.0)) == float("inf")


def test_a_calibration_measures_how_long_real_compute_takes(tmp_path: Path) -> None:
    found = calibrate(FakeCluster(), (1, 2, 8), tmp_path, of=load_suite("scaling"))
    made = Calibration.of(json.loads(json.dumps(found)))
    assert set(made.paces) == {"digits"}
    assert made.paces["digits"].batch == 192 / 2
    assert made.paces["digits"].step_s > 0
    assert made.took_s == found["took_s"] > 0
    assert set(Calibration.of(calibrate(FakeCluster(), (1, 2), tmp_path)).paces) == set()


def test_a_calibration_of_an_older_version_is_still_read() -> None:
    assert Calibration.of({"busbw_mbps": {"2": 500}}) == Calibration({2: 500.0})


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


@pytest.mark.usefixtures("two_cores")
def test_cores_that_something_else_uses_are_left_to_it() -> None:
    made = plan(SLOW, taken_cores=1.0)
    assert {it.cpus_per_node for it in made.trials if it.case == "digits-96"} == {0.067}
    assert {it.cpus_per_node for it in plan(SLOW).trials if it.case == "digits-96"} == {0.133}
    assert made.decided[0] == "digits-96: 0.067 cores a node instead of 0.133: something else uses 1"
    asked = load_suite("scaling")
    slower, _ = faithful.shared_out(asked, 1.0, WORKLOADS)
    assert slower.cases[0].estimated_step_s == pytest.approx(2 * asked.cases[0].estimated_step_s, rel=0.01)
    assert made.estimate_s <= 1.5 * LIMIT_S


@pytest.mark.usefixtures("two_cores")
def test_a_share_that_somebody_asked_for_stays() -> None:
    asked = load_suite("scaling")
    fixed = replace(asked, cases=tuple(replace(it, cpus_per_node=0.15) for it in asked.cases))
    assert {it.cpus_per_node for it in plan(SLOW, fixed, taken_cores=1.0).trials if it.case == "digits-96"} == {0.15}


class Busy(FakeCluster):
    """Something else computes beside it."""

    def __init__(self, cores: float) -> None:
        super().__init__()
        self._cores = cores

    def sample(self) -> Mapping[str, Any]:
        return {"cpu_s": self._cores * self.now(), "steal_s": 0.0}


@pytest.mark.parametrize(("cores", "found"), [(0.0, 0.0), (0.15, 0.0), (0.98, 1.0), (1.61, 1.6)])
def test_what_something_else_uses_is_measured(cores: float, found: float) -> None:
    assert busy_cores(Busy(cores)) == found


def test_where_nothing_helps_it_runs_the_shortest_and_says_so() -> None:
    made = plan({2: 100.0, 4: 80.0, 8: 50.0})
    assert made.estimate_s > LIMIT_S
    assert "nothing is left that could be dropped" in made.decided[-1]


def test_no_limit_drops_nothing() -> None:
    made = plan(SLOW, replace(load_suite("scaling"), limit_s=None))
    assert {it.case for it in made.trials} == {"digits", "resnet50"}
    assert hold(made, SLOW)


def test_without_a_calibration_all_is_as_asked() -> None:
    assert plan({}).decided == ()
    assert {it.dilation for it in plan({}).trials} == {1.0}


def test_the_least_dilation_is_the_suite_s() -> None:
    (_, resnet50) = load_suite("scaling").cases
    assert faithful.dilated(replace(resnet50, dilation=3.0), 500).dilation == 3.0
    assert faithful.dilated(resnet50, 500).dilation == 2.0
    assert faithful.dilated(resnet50, 499).dilation == 2.1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"calibrate": False}, "faithful = true: needs calibrate = true"),
        ({"limit_s": 0}, "limit_s = 0: must be 1 to 1000000"),
        ({"limit_s": None}, "decide = true: needs limit_s"),
    ],
)
def test_a_suite_of_nonsense_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        suite_from({**json.loads(json.dumps(as_document(load_suite("scaling")))), **change}, where="t", name="t")


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ({"steps": 0}, "instead 1: steps = 0: must be 1 to"),
        ({"speed": 2}, "instead 1: unknown key 'speed'"),
        (3, "a table"),
    ],
)
def test_an_instead_of_nonsense_is_refused(instead: object, said: str) -> None:
    document = json.loads(json.dumps(as_document(load_suite("scaling"))))
    document["cases"][1]["instead"] = [instead]
    with pytest.raises(SpecError, match=said):
        suite_from(document, where="t", name="t")


def test_a_run_keeps_what_was_decided_and_can_be_resumed_with_it(tmp_path: Path) -> None:
    suite = small()
    calibration = {"busbw_mbps": {str(count): rate for count, rate in SLOW.items()}}
    store = run(suite, FakeCluster(), tmp_path, Parts(calibration=calibration))
    assert store.read("plan")["decided"] == list(plan(SLOW, suite).decided) != []
    assert (
        suite_from(store.read("spec"), where="spec", name=suite.name) == suite
    )  # as asked, so that it can be repeated
    assert "calibration.json" in store.read("seal")["files"]
    assert (
        commands.host(suite, FakeCluster(), tmp_path, store, Terminal()) == calibration
    )  # the first one, not a second
    run(suite, FakeCluster(), tmp_path, Parts(calibration=calibration), store)
    with pytest.raises(SpecError, match="the plan asks for other trials now"):
        run(suite, FakeCluster(), tmp_path, Parts(calibration={"busbw_mbps": {"2": 500.0, "8": 300.0}}), store)


def small() -> Suite:
    case = Case("r18", "resnet18", steps=3, estimated_step_s=1.0, batch_per_node=4, link_mbps=800)
    return Suite("small", "Small", (1, 2, 8), (case,), repeats=1, calibrate=True, faithful=True)


def test_the_host_is_not_calibrated_where_links_are_not_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def measured(*words: object, **named: object) -> dict[str, object]:
        asked.append((words, named))
        return {}

    monkeypatch.setattr(commands, "measure_host", measured)
    plain = FakeCluster()
    commands.host(small(), plain, tmp_path, None, Terminal())
    assert len(asked) == 1
    monkeypatch.setattr(plain, "abilities", list)
    assert commands.host(small(), plain, tmp_path, None, Terminal()) is None
    assert len(asked) == 1


def test_repeats_that_are_asked_for_lift_the_limit() -> None:
    assert commands.asked(options("run")).limit_s == LIMIT_S
    assert commands.asked(options("run", "--repeats", "9")).limit_s is None


def options(*words: str) -> Namespace:
    return parser().parse_args(list(words))


def test_a_plan_says_what_only_a_run_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.plan(options("plan", "--cluster", "fake")) == 0
    assert "are decided by calibration, and stand here as asked" in capsys.readouterr().out


def test_what_was_decided_is_told_before_the_run() -> None:
    lines = commands.left_out(plan(SLOW))
    assert [line.partition(":")[0] for line in lines] == ["decided by calibration"] * 3
