"""The line to the driver: who is asked twice, late, or not any more. A program that knows no Ray stands in for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving_ground.bench.clusters.remote import ray
from proving_ground.bench.clusters.remote.ray import GONE, Driver, RayOptions, RayPool
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError
from tests.engines import traces

FAKE = """
import json, os, sys, time
from pathlib import Path
here = Path(__file__).parent
with (here / "lives").open("a") as lives:
    print(os.getpid(), file=lives)
if (here / "refuse").exists():
    sys.exit((here / "refuse").read_text())
def answer(number, it):
    print(json.dumps({"re": number, "ok": it}), flush=True)
held = []
for line in sys.stdin:
    question = json.loads(line)
    verb, number, about = question["verb"], question["id"], question["about"]
    if verb == "kill":  # who does not wait for it sees it undone
        time.sleep(0.3)
    with (here / "heard").open("a") as heard:
        print(verb, *about.get("names", []), file=heard)
    if verb == "silent":
        continue
    if verb == "later":
        held.append((number, about["it"]))
        continue
    if verb == "die":
        os.write(1, b'{"re": 1, "o')
        os._exit(3)
    time.sleep(about.get("s", 0))
    answer(number, about.get("it", verb))
    while verb == "release" and held:
        answer(*held.pop())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program is, and what it has heard."""
    program = tmp_path / "fake.py"
    program.write_text(FAKE)
    monkeypatch.setattr(ray, "DRIVER", program)
    return tmp_path


@pytest.fixture
def pool(folder: Path) -> Iterator[RayPool]:
    assert folder.exists()
    made = RayPool(RayOptions("ray://head:10001"))
    yield made
    made.release()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def lives(folder: Path) -> list[int]:
    return [int(it) for it in (folder / "lives").read_text().split()]


def test_an_answer_that_comes_too_late_is_not_the_next_questions(
    pool: RayPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = pool.driver
    monkeypatch.setattr(ray, "ANSWER_S", 0.2)
    with pytest.raises(ClusterError, match=r"ray: echo: no answer within 0\.2 s"):
        driver.ask("echo", it="late", s=0.6)
    monkeypatch.setattr(ray, "ANSWER_S", 20.0)
    assert [driver.ask("echo", it=number) for number in range(3)] == [0, 1, 2]


def test_a_question_that_is_never_answered_hinders_no_other(pool: RayPool, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pool.driver
    monkeypatch.setattr(ray, "ANSWER_S", 0.2)
    with pytest.raises(ClusterError, match="no answer"):
        driver.ask("silent")
    monkeypatch.setattr(ray, "ANSWER_S", 20.0)
    assert driver.ask("echo", it="mine") == "mine"


def test_answers_out_of_order_find_who_asked(pool: RayPool, folder: Path) -> None:
    found: dict[int, object] = {}
    driver = pool.driver

    def ask(number: int) -> None:
        found[number] = driver.ask("later", it=number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        assert traces.until(lambda: (folder / "heard").read_text().count("later") == number)  # noqa: B023 - called here
    driver.ask("release")
    for thread in threads:
        thread.join(20)
    assert found == {number: number for number in range(4)}


def test_after_ctrl_c_the_actors_are_killed_though_their_start_was_not_answered(pool: RayPool, folder: Path) -> None:
    driver = pool.driver
    pool._actors = ["run n1 me", "run n2 me"]
    threading.Thread(target=interrupted, args=(folder / "heard", "start")).start()
    with pytest.raises(KeyboardInterrupt):
        driver.ask("start", s=1.0)
    pool.release()
    assert (folder / "heard").read_text().splitlines() == ["version", "start", "kill run n1 me run n2 me"]


def interrupted(heard: Path, word: str) -> None:
    """Ctrl-C as soon as the program has heard a word."""
    traces.until(lambda: word in heard.read_text())
    os.kill(os.getpid(), signal.SIGINT)


def test_a_driver_that_has_died_is_replaced_by_one_however_many_lines_miss_it(pool: RayPool, folder: Path) -> None:
    driver = pool.driver
    with pytest.raises(ClusterError, match=f"^ray: {GONE}$"):
        driver.ask("die")
    for _ in range(5):
        assert pool.closed(f"n1: {GONE}")
    assert [driver.ask("echo", it=number) for number in range(3)] == [0, 1, 2]
    assert len(lives(folder)) == 2
    assert gone(lives(folder)[0])


def test_the_actors_are_killed_though_the_driver_has_died_meanwhile(pool: RayPool, folder: Path) -> None:
    driver = pool.driver
    pool._actors = ["run n1 me"]
    talk = driver.begin()
    os.kill(lives(folder)[-1], signal.SIGKILL)
    assert traces.until(lambda: talk.over)
    assert talk.ask("echo", {}, 20.0) == {}
    pool.release()
    assert (folder / "heard").read_text().splitlines()[-1] == "kill run n1 me"
    assert traces.until(lambda: all(map(gone, lives(folder))))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what is dropped is not closed
def test_no_driver_runs_any_more_when_its_pool_is_dropped(folder: Path) -> None:
    Driver(RayOptions("ray://head:10001")).ask("echo")
    assert traces.until(lambda: gone(lives(folder)[0]))


def test_why_a_driver_cannot_connect_is_told(folder: Path) -> None:
    (folder / "refuse").write_text("noise\nRuntimeError: Version mismatch: Ray: 1\n")
    with pytest.raises(SpecError, match=r"^cluster ray: RuntimeError: Version mismatch: Ray: 1$"):
        Driver(RayOptions("ray://head:10001"))
    assert gone(lives(folder)[0])
