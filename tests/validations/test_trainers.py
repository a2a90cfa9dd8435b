"""The catalogue of defects is what it says, each patches what is there, and the judgement counts as it must."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.plan import make_plan
from proving_ground.bench.spec import SpecError
from proving_ground.chaos import spec
from proving_ground.training import __main__ as trainer
from tests.reports.recovery import synthetic
from tests.validations import defective, defects, trainers
from tests.validations.defects import ACTED, DEFECTS, OWN
from tests.validations.trainers import (
    SHAPES,
    SOUND,
    Batch,
    Cell,
    Playing,
    Recorded,
    batches,
    effect,
    main,
    suite,
    told,
)

THREAD = re.compile(r"[\w.-]+/[\w.-]+#[1-9]\d*")


def test_the_catalogue_has_forty_defects_and_half_of_them_were_seen_elsewhere() -> None:
    seen = [it.seen for it in DEFECTS.values() if THREAD.fullmatch(it.seen)]
    assert len(DEFECTS) >= 40
    assert len(seen) >= max(20, len(DEFECTS) / 2)
    assert {it.seen for it in DEFECTS.values()} - set(seen) == {OWN}
    assert all(it.shapes and set(it.shapes) <= SHAPES.keys() for it in DEFECTS.values())
    assert len({it.what for it in DEFECTS.values()}) == len({it.put for it in DEFECTS.values()}) == len(DEFECTS)
    assert all(it.put.__name__ == name for name, it in DEFECTS.items())


@pytest.mark.parametrize("name", DEFECTS)
def test_every_defect_changes_something_that_the_trainer_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[Any] = []
    monkeypatch.setattr(defects, "SEEN", {})
    monkeypatch.setattr(defects, "wrap", lambda owner, it, around: changed.append((getattr(owner, it), around)))
    DEFECTS[name].put()
    assert changed
    assert all(callable(before) and callable(around) for before, around in changed)
    assert [why for before, around in changed if (why := misfit(before, around))] == []


def misfit(before: Callable[..., Any], around: Callable[..., Any]) -> str:
    """Why what is put around a function cannot be called as that one is; empty where it can."""
    theirs = inspect.signature(before)
    (_, *ours) = inspect.signature(around).parameters.values()
    mine = inspect.Signature(ours)
    given = [it.name for it in theirs.parameters.values() if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)]
    named = [it.name for it in theirs.parameters.values() if it.kind is it.KEYWORD_ONLY]
    try:
        mine.bind(*given, **dict.fromkeys(named))
    except TypeError as error:
        return f"{around.__qualname__}: {error}"
    return ""


def test_a_defect_that_outlived_the_function_it_is_put_around_is_seen() -> None:
    def now(self: object, step: int, *, wish: bool, told: bool) -> None: ...
    def then(before: object, self: object, step: int, *, wish: bool) -> None: ...
    def open_(before: object, *given: object, **named: object) -> None: ...

    assert "unexpected keyword argument 'told'" in misfit(now, then)
    assert misfit(now, open_) == ""


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test wraps is put back after it."""

    def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
        before = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **more: around(before, *given, **more))

    monkeypatch.setattr(defects, "SEEN", {})
    monkeypatch.setattr(defects, "wrap", wrap)


@pytest.mark.usefixtures("unpatched")
def test_a_common_defect_acts_from_the_first_step(capfd: pytest.CaptureFixture[str]) -> None:
    assert defective.labels_shifted(words(steps=2)) == 0
    assert capfd.readouterr().out.count(ACTED) == 1


@pytest.mark.usefixtures("unpatched")
def test_any_other_acts_once_the_process_goes_on_after_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = {"checkpoint_dir": tmp_path / "c", "optimizer": "adamw"}
    assert defective.moments_share_memory(words(**keys, steps=2)) == 0
    assert ACTED not in capfd.readouterr().out
    assert defective.moments_share_memory(words(**keys, steps=4)) == 0
    assert ACTED in capfd.readouterr().out
    with pytest.raises(AttributeError):
        defective.no_such_defect  # noqa: B018


def words(**keys: object) -> list[str]:
    """A trainer's command."""
    sets = {"eval_every": -1, "lr": 0.002, **keys}
    return ["run", *(part for name, value in sets.items() for part in ("--set", f"{name}={value}"))]


def test_a_live_job_s_trainer_can_be_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[list[str]] = []

    def run_other(name: str, it: list[str]) -> int:
        given.append([name, *it])
        return 75

    monkeypatch.setitem(vars(defects)["DEFECTS"], "other", SimpleNamespace())
    monkeypatch.setattr(defects, "run", run_other)
    live = ["live", "--nodes", "2:3", "--number", "1", "--lighthouse", "h:1", "--address", "a"]
    entry = ["--entry", "tests.validations.defective:other"]
    assert trainer.main([*live, *entry, "run", "--set", "steps=1"]) == 75
    (name, *asked), run = given[0], ["run", "--set", "steps=1"]
    assert (name, trainer.parser().parse_args(asked)) == ("other", trainer.parser().parse_args([*live, *run]))
    assert trainer.main([*live, "--entry", "nonsense", *run]) == 2
    assert "--entry nonsense: must be MODULE:FUNCTION" in capsys.readouterr().err


def test_all_cells_are_decided_before_and_can_be_planned(tmp_path: Path) -> None:
    every = batches()
    cells = [cell for batch in every for cell in batch]
    assert every == batches()
    assert len({cell.key for cell in cells}) == len(cells)
    assert len([it for it in cells if it.defect != SOUND]) == sum(len(it.shapes) for it in DEFECTS.values())
    assert {it.seed for it in cells if it.defect == SOUND} >= set(range(1, 51))
    assert all(batch[0].defect == SOUND for batch in every if any(cell.common for cell in batch))
    for batch in every:
        (tmp_path / "trainers.toml").write_text(suite(batch))
        planned = make_plan(spec.load(str(tmp_path / "trainers.toml")), FakeCluster()).trials
        assert {it.case for it in planned if it.faults} == {cell.case for cell in batch}
        assert all(20 <= it.faults[0]["after_steps"] <= 40 for it in planned if it.faults)


def record(trial: str, weights: str, ids: list[int], step: int = 8, generation: int = 1) -> list[dict[str, Any]]:
    """What two ranks tell of one step."""
    step_s = [{"event": "step", "step": step, "generation": generation, "rows": rows} for rows in (ids[:2], ids[2:])]
    hashes = {"event": "fingerprint", "step": step, "parameters_sha256": weights, "optimizer_sha256": "o"}
    return [{**it, "trial": trial, "source": f"n{at}.0"} for it in (*step_s, hashes) for at in (1, 2)][:6]


def job(folder: Path, own: list[Any], twin: list[Any], *, acts: bool, name: str) -> Recorded:
    """A run of one case, its twin and a sound job's."""
    case = name.replace("_", "-")
    (folder / "t001.n1.0.log").write_text(ACTED if acts else "")
    (folder / "t002.n1.0.log").write_text(ACTED if acts else "")
    plan = [
        {"id": "t001", "case": case, "nodes": 2, "faults": [1], "twin_of": ""},
        {"id": "t002", "case": case, "nodes": 2, "faults": [], "twin_of": case, "role": "twin"},
        {"id": "t003", "case": SOUND, "nodes": 2, "faults": [], "twin_of": SOUND, "role": "twin"},
    ]
    return Recorded(plan, {"t001": own, "t002": twin, "t003": record("t003", "a", [1, 2, 3, 4])}, folder)


@pytest.mark.parametrize(
    ("name", "shape", "weights", "ids", "acts", "expected"),
    [
        ("update_skipped", "whole", "b", [1, 2, 3, 4], True, (True, True, True)),
        ("update_skipped", "whole", "a", [4, 3, 2, 1], True, (True, False, False)),
        ("update_skipped", "whole", "b", [1, 2, 3, 4], False, (False, True, False)),
        ("data_one_step_ahead", "whole", "a", [1, 2, 3, 9], True, (True, True, True)),
        ("update_skipped", "float", "b", [1, 2, 3, 4], True, (True, None, True)),
        ("data_one_step_ahead", "float", "b", [1, 2, 3, 9], True, (True, True, True)),
        ("data_one_step_ahead", "float", "b", [1, 2, 3], True, (True, None, True)),
    ],
)
def test_whether_a_defect_made_a_difference_follows_from_the_records(
    tmp_path: Path, name: str, shape: str, weights: str, ids: list[int], *, acts: bool, expected: tuple[Any, ...]
) -> None:
    own = record("t001", "x", [7, 7, 7, 7]) + record("t001", weights, ids, generation=2)
    run = job(tmp_path, own, record("t002", "a", [1, 2, 3, 4]), acts=acts, name=name)
    assert tuple(effect(Cell(name, shape), run).values()) == expected


def test_other_buffers_alone_are_a_difference(tmp_path: Path) -> None:
    own, twin = record("t001", "a", [1, 2, 3, 4]), record("t002", "a", [1, 2, 3, 4])
    for it, buffers in (*((it, "b") for it in own), *((it, "c") for it in twin)):
        it["buffers_sha256"] = buffers
    run = job(tmp_path, own, twin, acts=True, name="buffers_not_restored")
    assert tuple(effect(Cell("buffers_not_restored", "whole"), run).values()) == (True, True, True)


def test_a_common_defect_s_twin_is_compared_with_a_sound_one(tmp_path: Path) -> None:
    same = record("t001", "b", [1, 2, 3, 4])
    run = job(tmp_path, same, record("t002", "b", [1, 2, 3, 4]), acts=True, name="labels_shifted")
    assert effect(Cell("labels_shifted", "float"), run)["effective"] is True
    run = job(tmp_path, same, record("t002", "a", [1, 2, 3, 4]), acts=True, name="labels_shifted")
    assert effect(Cell("labels_shifted", "float"), run)["effective"] is False


def cell(defect: str, shape: str, outcome: str, **more: Any) -> dict[str, Any]:
    """A measured cell."""
    return {
        "defect": defect,
        "shape": shape,
        "outcome": outcome,
        "seed": 1,
        "why": "w",
        "failed": [],
        "also": [],
        **more,
    }


def test_what_was_missed_is_named_and_fails() -> None:
    cells = [
        cell("update_skipped", "whole", "wrong", effective=True),
        cell("update_skipped", "float", "recovered", effective=True),
        cell("clipping_forgotten", "float", "recovered", effective=False),
        cell(SOUND, "local", "recovered"),
    ]
    document = {"cells": {str(number): it for number, it in enumerate(cells)}}
    text = "\n".join(told(document))
    assert "restart at full size: 1 defects, 1 effective: 1 wrong" in text
    assert "effective defects called recovered: 1\n  float: update_skipped\n" in text
    assert "defects without an effect: 1\n  float: clipping_forgotten" in text
    assert "sound trainers: 1 of 1 recovered" in text
    assert not trainers.fine(document)
    del document["cells"]["1"]
    assert trainers.fine(document)
    document["cells"]["4"] = cell(SOUND, "whole", "wrong")
    assert not trainers.fine(document)


class Played:
    """Stands for the runs: every one gives its cells; one breaks off at a certain case."""

    def __init__(self, folder: Path, breaks: str = "") -> None:
        self.folder, self.breaks = folder, breaks
        self.runs: list[list[str]] = []
        self.taken = self.most = 0  # runs whose cells were kept; the most that were under way at once

    @contextmanager
    def play(self, batch: Batch, cells: list[Cell]) -> Iterator[Playing]:
        """A run that is over at once."""
        self.runs.append([it.key for it in cells])
        self.most = max(self.most, len(self.runs) - self.taken)
        over = SimpleNamespace(poll=lambda: 0)
        yield Playing(batch, cells, self.folder / str(len(self.runs)), cast("Any", over), time.monotonic())

    def take(self, document: Any, cells: list[Cell], _run: object) -> None:
        """All of them; only the one that broke it off."""
        self.taken += 1
        broken = [it for it in cells if self.breaks and self.breaks in it.key and it.key not in document["cells"]]
        for it in broken or cells:
            outcome = "recovered" if it.defect == SOUND else "wrong"
            document["cells"].setdefault(it.key, cell(it.defect, it.shape, outcome, effective=True))


def test_no_cell_is_run_twice_and_a_run_that_broke_off_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played, out = Played(tmp_path, breaks="schedule_lags"), tmp_path / "j.json"
    monkeypatch.setattr(trainers, "played", played.play)
    monkeypatch.setattr(trainers, "take", played.take)
    monkeypatch.setattr(rundir, "find", lambda *_: None)
    asked = ["--only", "schedule_", "--jobs", "1", "--out", str(out)]
    assert main(asked) == 0
    known = [key for run in played.runs for key in run]
    assert sorted(played.runs[0]) == ["schedule_begins_anew whole", "schedule_counted_twice whole",
                                      "schedule_lags whole", "schedule_of_another_length whole"]  # fmt: skip
    assert "schedule_lags whole" not in played.runs[1]
    assert set(json.loads(out.read_text())["cells"]) == set(known)
    played.runs.clear()
    assert main(asked) == 0
    assert played.runs == []
    assert main(["--only", "rate_frozen whole", "--jobs", "1", "--out", str(out)]) == 0
    assert played.runs == [["sound whole 1", "rate_frozen whole"]]
    assert played.most == 1
    played.runs.clear()
    played.taken = 0
    assert main(["--only", "sound", "--jobs", "3", "--out", str(out)]) == 0
    assert played.most == 3
    assert len(played.runs) == len(set(map(tuple, played.runs))) > 3


def test_without_time_nothing_is_run_and_nonsense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--minutes", "0.01", "--out", str(tmp_path / "j.json")]) == 0
    count = sum(map(len, batches()))
    assert f"{count} cells, {count} cells in {len(batches())} runs, about" in capsys.readouterr().out
    with pytest.raises(SpecError, match="--minutes 0 --jobs 2: must be above 0"):
        main(["--minutes", "0"])
    with pytest.raises(SpecError, match="--jobs 0: must be above 0"):
        main(["--jobs", "0"])


def written(folder: Path, ends: dict[str, tuple[bool, str]], rows: list[dict[str, Any]]) -> Any:
    """A run of two cases whose trials ended so."""
    plan = [
        {
            "id": f"t00{number}",
            "case": case,
            "nodes": 2,
            "faults": [] if twin else [1],
            "twin_of": case if twin else "",
            "role": "twin" if twin else "",
        }
        for number, (case, twin) in enumerate(itertools.product(("sound", "update-skipped"), (False, True)), 1)
    ]
    events = [{"trial": name, "event": "trial_end", "t": 1.0, "ok": ok, "why": why} for name, (ok, why) in ends.items()]
    (folder / "history.jsonl").write_text("".join(json.dumps(it) + "\n" for it in events))
    documents = {"plan": {"trials": plan}, "results": {"trials": rows, "verdicts": []}}
    return SimpleNamespace(path=folder, logs=folder, read=documents.__getitem__)


def test_a_run_that_ended_before_its_report_is_judged(tmp_path: Path) -> None:
    store = synthetic.make(tmp_path)
    (store.path / "results.json").unlink(missing_ok=True)
    assert {it["outcome"] for it in trainers.judged(store)["trials"]} == {"recovered"}


def test_of_a_run_that_broke_off_only_the_cell_that_broke_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "KEPT", tmp_path / "kept")
    cells = [Cell(SOUND, "whole"), Cell("update_skipped", "whole")]
    row = {"trial": "t001", "outcome": "recovered", "why": "", "verdicts": {"happened": "pass"}}
    document: dict[str, Any] = {"cells": {}}
    trainers.take(document, cells, written(tmp_path, {"t001": (True, ""), "t003": (False, "no step")}, [row]))
    assert [(name, it["outcome"], it["why"]) for name, it in document["cells"].items()] == [
        ("update_skipped whole", "failed", "no step")
    ]
    ends = {f"t00{number}": (True, "") for number in (1, 2, 3, 4)}
    trainers.take(document, cells, written(tmp_path, ends, [row]))
    assert document["cells"]["sound whole 1"]["outcome"] == "recovered"
    assert len(document["cells"]) == 2
    assert not (tmp_path / "kept").exists()
    wrong = {**row, "outcome": "wrong", "verdicts": {"exactly_once": "fail"}}
    trainers.take({"cells": {}}, cells[:1], written(tmp_path, ends, [wrong]))
    assert (tmp_path / "kept" / "sound-whole-1").is_dir()
