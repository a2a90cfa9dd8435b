"""Prices, the meter and the reasons to go: pure, with the stack `dev` as it is configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving_ground.infra import outputs
from proving_ground.infra.reading import ConfigError
from proving_ground.loop import keeper, ledger, money, steps
from proving_ground.loop.ledger import Asked, Spent
from proving_ground.loop.steps import Known

DEV = Asked("dev", budget_usd=50)


def test_the_price_of_a_node_is_that_of_the_pool_that_is_measured() -> None:
    stack = money.expected("dev")
    spot, other = money.of_a_node(DEV, stack), money.of_a_node(Asked("dev", pool="cpu"), stack)
    assert spot is not None
    assert other is not None
    assert spot < other
    assert money.of_a_node(Asked("local"), money.expected("local")) is None


def test_the_meter_counts_what_is_there_and_holds_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise ConfigError("no answer")

    monkeypatch.setattr(outputs, "load", absent)
    each = money.prices(DEV)
    first = money.read(DEV, Spent(at=0.0), 0.0)
    assert first.nodes == money.least(DEV)
    assert first.usd_per_hour == pytest.approx(each["system"])
    busy = Spent(1.0, 2.0, 0.0, {"system": 1, "t4": 1})
    later = money.read(DEV, busy, 1800.0)
    assert later.usd == pytest.approx(2.0)
    assert later.usd_per_hour == pytest.approx(each["system"] + each["t4"])
    assert money.counted({"-": (1, 2), "t4": (0, 1)}) == {"system": 2, "t4": 1}


@pytest.mark.parametrize(
    ("now", "spent", "why"),
    [
        (10.0, Spent(49.0, 1.0, 10.0), None),
        (3610.0, Spent(49.0, 1.0, 10.0), "$50.00 are spent, and its budget is $50.00"),
        (7200.0, Spent(), "its 2 h are over"),
    ],
)
def test_it_goes_when_its_time_or_its_money_is_over(now: float, spent: Spent, why: str | None, tmp_path: Path) -> None:
    made = ledger.create(tmp_path, DEV)
    made.note("kept", deadline=7200.0)
    assert keeper.due(made.state(), spent, now) == why


def test_a_ledger_survives_a_half_written_line_and_says_what_is_to_be_done(tmp_path: Path) -> None:
    made = ledger.create(tmp_path, DEV)
    made.note("step_begun", step="up")
    with (made.folder / "ledger.jsonl").open("a") as out:
        out.write('{"t": 1, "event": "step_en')
    state = made.state()
    assert (state.asked, state.last, list(state.done), state.ended) == (DEV, "up", [], None)
    assert state.running
    assert state.up_since
    made.note("step_ended", step="up", status=0, well=True)
    assert list(made.state().done) == ["up"]
    assert ledger.latest(tmp_path, "dev") == made
    assert ledger.every(tmp_path) == [made]


def test_an_interrupted_benchmark_is_resumed_and_a_whole_one_is_left(tmp_path: Path) -> None:
    known = Known(DEV, tmp_path, ["runs/smoke/1"], unfinished=True, usd_per_hour=0.5)
    (command,) = steps.bench(known)
    assert list(command[4:]) == ["run", "--resume", "runs/smoke/1", "--no-report", "--runs", str(tmp_path)]
    assert steps.bench(Known(DEV, tmp_path, ["runs/smoke/1"])) == []
    assert [list(it[3:]) for it in steps.report(known)] == [["reports", "runs/smoke/1", "--price-per-node-hour", "0.5"]]
    assert steps.backup(known) == []
