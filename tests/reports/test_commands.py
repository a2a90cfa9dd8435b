"""`compare`, `trend` and `advise` as people and CI call them: answers, exit statuses, and what they refuse."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from proving_ground.reports import document
from proving_ground.reports.cli import command_first, main
from proving_ground.reports.comparing import pairing
from proving_ground.reports.figures import pick
from proving_ground.reports.scaling import results
from tests.reports.faked import ProfiledCluster, case, faked, suite
from tests.reports.synthetic import Knobs, make

BEFORE, AFTER = case("before", momentum=0.9), case("after", momentum=0.8)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With five runs of one configuration."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(10, 15):
        run = faked(folder, suite(BEFORE, AFTER, repeats=2), ProfiledCluster(seed=seed))
        document.write(run, results.analyse(run).results)
    return folder


@pytest.fixture(scope="module")
def same(runs: Path) -> RunDir:
    return faked(runs, suite(BEFORE, AFTER, repeats=4), ProfiledCluster(seed=1))


@pytest.fixture(scope="module")
def again(runs: Path, same: RunDir) -> RunDir:
    assert same
    return faked(runs, suite(BEFORE, AFTER, repeats=4), ProfiledCluster(seed=2))


@pytest.fixture(scope="module")
def slow(runs: Path, again: RunDir) -> RunDir:
    """The case `after` takes 5 % longer."""
    assert again
    return faked(runs, suite(BEFORE, AFTER, repeats=4), ProfiledCluster(slow=1.05, slow_if=("momentum", 0.8), seed=3))


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_same_code_is_no_regression(
    runs: Path, same: RunDir, again: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = call(capsys, "compare", same.path, again.path, "--runs", runs)
    assert status == 0
    assert out.splitlines()[-1].startswith("the same: ")
    assert re.search(r"Standard deviation between runs: 0\.\d.* % \(from 5 earlier runs\)", out)


def test_two_runs_alone_are_no_regression_whatever_they_say(
    same: RunDir, slow: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = call(capsys, "compare", same.path, slow.path, "--runs", tmp_path)
    assert status == 0
    assert "between runs: 3.0 % (assumed, on the safe side: 0 earlier runs of this configuration, 5 needed)" in out
    assert re.match(r"cannot tell: no change beyond ±1 % is shown; one below 1\d\.\d % could", out.splitlines()[-1])


@pytest.mark.parametrize(("key", "value"), [("cpu", "Another CPU"), ("cores", 96)])
def test_earlier_runs_on_another_machine_tell_nothing(
    runs: Path, same: RunDir, tmp_path: Path, key: str, value: object
) -> None:
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True, symlinks=True)
    for run in rundir.all_runs(tmp_path):
        document = run.read("provenance")
        run.write("provenance", document | {"host": document["host"] | {key: value}})
    assert noises_of(same, tmp_path) == (0, True)
    assert noises_of(same, runs) == (5, False)


@pytest.mark.parametrize("change", [{"link_mbps": 300}, {"label": "real"}, {"steps": 9}])
def test_earlier_runs_of_another_configuration_tell_nothing(
    runs: Path, same: RunDir, tmp_path: Path, change: dict[str, Any]
) -> None:
    for run in [it for it in rundir.all_runs(runs) if it.run_id < same.run_id]:
        copy = edited(run, tmp_path, **change)
        copy.results.write_bytes(run.results.read_bytes())
    assert noises_of(same, tmp_path) == (0, True)


def test_a_damaged_earlier_run_is_left_out(runs: Path, same: RunDir, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True, symlinks=True)
    rundir.all_runs(tmp_path)[0].results.write_text("{")
    assert noises_of(same, tmp_path) == (4, True)


def noises_of(run: RunDir, runs: Path) -> tuple[int, bool]:
    """How many earlier runs tell how far apart runs lie, and whether that is assumed."""
    side = pairing.load(runs, str(run.path))
    found = pick(side.analysis.figures, "throughput", case="before", nodes=2)
    assert found is not None
    noise = pairing.noise_between(runs, side, side)(found)
    return noise.runs, noise.assumed


@pytest.mark.parametrize(
    ("change", "said", "decides"),
    [
        ({"host": {"cpu": "Another CPU"}}, "processor: ", True),
        ({"host": {"cores": 96}}, "number of cores: ", True),
        ({"host": {"gpu": "2 × NVIDIA H200"}}, "GPU: ", True),
        ({"host": {"kernel": "Linux 7.0"}}, "kernel: ", False),
        ({"packages": {"torch": "9.9"}}, "torch: ", False),
        ({"python": "3.99"}, "Python: ", False),
        ({"git": {"commit": "c" * 40, "dirty": True}}, f"→ {'c' * 12} with changes", False),
    ],
)
def test_what_differs_is_named_and_another_machine_decides_nothing(
    runs: Path, same: RunDir, slow: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    change: dict[str, Any], said: str, decides: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    other = edited(slow, tmp_path)
    document = other.read("provenance")
    other.write("provenance", {**document, **{key: {**document[key], **value} if isinstance(value, dict) else value
                                              for key, value in change.items()}})  # fmt: skip
    rundir.seal(other, complete=True)
    file = tmp_path / "summary.md"
    status, out, _ = call(capsys, "compare", same.path, other.path, "--runs", runs, "--markdown", file)
    differs = next(line for line in out.splitlines() if line.startswith("differs: "))
    assert said in differs
    assert f"Differs: {differs[9:]}" in file.read_text()
    assert status == (0 if decides else 1)
    assert (f"cannot tell: another {said.rstrip(': ')}" in out) == decides


def test_runs_of_a_time_when_nobody_wrote_gpus_down_differ_in_none() -> None:
    of_old, cpu, gpu = {"GPU": "not known"}, {"GPU": "none"}, {"GPU": "NVIDIA H200"}
    assert pairing.untold("GPU", of_old, gpu)
    assert pairing.untold("GPU", gpu, of_old)
    assert not pairing.untold("GPU", cpu, gpu)
    assert not pairing.untold("processor", {"processor": "not known"}, {"processor": "x"})


def test_five_percent_are_a_regression(
    runs: Path, same: RunDir, slow: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "summary.md"
    status, out, _ = call(capsys, "compare", same.path, slow.path, "--markdown", file, "--runs", runs)
    assert status == 1
    assert out.splitlines()[-1].startswith("worse: throughput after weak 1 nodes by −4.")
    assert "before" not in out.splitlines()[-1]
    text = file.read_text()
    assert text.startswith("### worse: ")
    assert text.count("| worse |") >= 3
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_faster_is_better_and_no_alarm(
    runs: Path, same: RunDir, slow: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = call(capsys, "compare", slow.path, same.path, "--runs", runs)
    assert status == 0
    assert out.splitlines()[-1].startswith("better: ")


def test_cases_of_one_run_are_compared_in_pairs(slow: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ["--runs", slow.path.parent.parent]
    assert call(capsys, "compare", f"{slow.run_id}:before", f"{slow.run_id}:after", *runs)[0] == 1
    assert call(capsys, "compare", f"{slow.run_id}:before", f"{slow.run_id}:before", *runs)[0] == 0


def test_a_change_within_the_margin_is_none(same: RunDir, slow: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", same.path, slow.path, "--runs", same.path.parent.parent)
    assert [call(capsys, *words, "--margin", margin)[0] for margin in (1, 8)] == [1, 0]


def edited(run: RunDir, folder: Path, **plan: Any) -> RunDir:
    """A copy whose trials were planned differently."""
    there = RunDir(folder / run.suite / run.run_id)
    for file in run.path.rglob("*"):
        if file.is_file():
            (there.path / file.relative_to(run.path)).parent.mkdir(parents=True, exist_ok=True)
            (there.path / file.relative_to(run.path)).write_bytes(file.read_bytes())
    document = there.read("plan")
    for trial in document["trials"]:
        trial |= {key: value for key, value in plan.items() if key != "cluster"}
    document["cluster"]["name"] = plan.get("cluster", document["cluster"]["name"])
    there.write("plan", document)
    rundir.seal(there, complete=True)
    return there


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cluster": "kubernetes"}, "cluster fake and kubernetes"),
        ({"label": "real", "imitated": []}, "label emulated and real"),
        ({"link_mbps": 800}, "link_mbps of case after 400.0 and 800"),
        ({"batch_per_node": 5}, "batch_per_node of case after 4 and 5"),
    ],
)
def test_unlike_runs_are_refused(
    same: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    status, _, err = call(capsys, "compare", same.path, edited(same, tmp_path, **change).path)
    assert status == 2
    assert said in err
    assert err.count("\n") == 1


def test_other_suites_are_refused(same: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = faked(tmp_path, replace(suite(BEFORE, AFTER), name="other"))
    status, _, err = call(capsys, "compare", same.path, other.path)
    assert (status, "suite faked and other" in err) == (2, True)


def test_a_failed_run_is_refused(same: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = make(tmp_path, Knobs(nodes=(1, 2), kill="t002"))
    status, _, err = call(capsys, "compare", same.path, failed.path)
    assert status == 2
    assert "cannot be compared: trial t002: n2.0 ended with exit status -9" in err


def test_a_single_value_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = faked(tmp_path, suite(BEFORE, AFTER, repeats=1))
    status, _, err = call(capsys, "compare", once.path, once.path)
    assert (status, "has a single value, whose noise nobody knows; repeat it: --repeats 3" in err) == (2, True)


@pytest.mark.parametrize("name", ["nothing", ":nobody"])
def test_unknown_runs_and_cases_are_refused(
    same: RunDir, runs: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    asked = same.run_id + name if name.startswith(":") else name
    status, _, err = call(capsys, "compare", same.run_id, asked, "--runs", runs)
    assert status == 2
    assert "unknown case 'nobody'; allowed: after, before" in err or "unknown run 'nothing'; allowed" in err


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs of one commit, then four of the next, which is 6 % slower; and one of another suite."""
    folder = tmp_path_factory.mktemp("history")
    faked(folder, replace(suite(), name="other"))
    for number in range(9):
        run = faked(
            folder, suite(nodes=(1, 2), repeats=2), ProfiledCluster(slow=1.06 if number > 4 else 1, seed=number)
        )
        origin = run.read("provenance")
        origin["git"] = {"commit": "b" * 40 if number > 4 else "a" * 40, "dirty": False}
        run.write("provenance", origin)
        rundir.seal(run, complete=True)
        document.write(run, results.analyse(run).results)
    return folder


def test_trend_names_the_commit_of_a_change(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "trend", "--runs", history)
    assert status == 0
    assert "faked: 9 runs" in out
    assert out.count(f"between commits {'a' * 12} and {'b' * 12}") == 2  # at 1 and at 2 nodes
    assert "−5.7 %" in out or "−5.6 %" in out or "−5.8 %" in out
    assert "left out: suite other, not faked" in out


def test_trend_of_named_runs_refuses_what_does_not_fit(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [run.run_id for run in rundir.all_runs(history)]
    status, _, err = call(capsys, "trend", *names, "--runs", history)
    assert (status, "cannot be part of the trend: suite other, not faked" in err) == (2, True)
    status, _, err = call(capsys, "trend", *names[1:4], "--runs", history)
    assert (status, "3 runs fit together, and a trend needs 6 at least" in err) == (2, True)


def test_noise_between_runs_comes_from_earlier_ones(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [run.run_id for run in rundir.all_runs(history)]
    status, out, _ = call(capsys, "compare", names[-2], names[-1], "--runs", history)
    assert (status, "(from 7 earlier runs)" in out) == (0, True)


def test_advice_is_what_running_it_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tried = faked(tmp_path, suite(case(link_mbps=300), nodes=(1, 2, 4)))
    file = tmp_path / "advice.toml"
    status, out, _ = call(capsys, "advise", tried.path, "--suite", file, "--most", 4)
    assert status == 0
    assert "gradients travel as FP16: predicted +" in out
    from proving_ground.bench.spec import load_suite  # noqa: PLC0415 - only here

    ran = faked(tmp_path, load_suite(str(file)))
    status, out, _ = call(capsys, "advise", tried.path, "--check", ran.path)
    assert status == 0
    assert len(out.splitlines()) == 4
    for line in out.splitlines():
        predicted, measured = (float(line.split(word)[1].split("%")[0]) for word in ("predicted", "measured"))
        assert predicted == pytest.approx(measured, abs=3)


def test_advice_for_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = faked(tmp_path, suite(case(link_mbps=100_000)))
    assert "is predicted to win a percent or more" in call(capsys, "advise", hidden.path)[1]
    status, _, err = call(capsys, "advise", hidden.path, "--suite", tmp_path / "no.toml")
    assert (status, "nothing that can be changed is predicted to win" in err) == (2, True)


def test_checking_advice_with_another_run_is_refused(same: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "advise", same.path, "--check", same.path)
    assert (status, "has no case of the advice" in err) == (2, True)


def test_options_may_stand_before_a_command(same: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    runs = same.path.parent.parent
    first = call(capsys, "--runs", runs, "compare", same.path, same.path)
    assert first == call(capsys, "compare", "--runs", runs, same.path, same.path)
    assert command_first(["--runs", "compare", "latest"]) == ["--runs", "compare", "latest"]  # a folder of that name
    assert command_first(["--help"]) == ["--help"]


def test_a_price_gives_cost_and_none_gives_none(same: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, same.path, "--price-per-node-hour", "3.6")
    document = json.loads(same.results.read_text())
    found = pick(document["figures"], "cost", case="before", nodes=2, per="1,000 samples")
    rate = pick(document["figures"], "throughput", case="before", nodes=2)
    assert found is not None
    assert rate is not None
    assert found["median"] == pytest.approx(1000 * 3.6 * 2 / 3600 / rate["median"], rel=1e-3)
    assert "For a price of 3.6 a node and hour" in same.report.read_text().replace("\N{NO-BREAK SPACE}", " ")
    call(capsys, same.path)
    assert pick(json.loads(same.results.read_text())["figures"], "cost") is None
    assert "No price was stated" in same.report.read_text()


@pytest.mark.parametrize("price", ["0", "-1", "free"])
def test_a_price_of_nonsense_is_refused(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--price-per-node-hour", price])
    assert "--price-per-node-hour" in capsys.readouterr().err
