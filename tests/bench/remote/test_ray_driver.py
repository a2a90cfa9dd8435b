"""The driver's connection, with a module in Ray's place."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from proving_ground.bench.clusters.remote.ray_driver import ATTEMPTS, Driver


class Ray:
    """What the driver takes of Ray: a connection at a time, which others have to wait for."""

    def __init__(self) -> None:
        self.connected = False
        self.made = self.fails = 0
        self.waited = 0.0

    def is_initialized(self) -> bool:
        return self.connected

    def init(self, *_words: object, **_options: object) -> None:
        assert not self.connected
        time.sleep(0.05)
        self.made += 1
        if self.fails:
            self.fails -= 1
            raise ConnectionAbortedError
        self.connected = True

    def shutdown(self) -> None:
        self.connected = False

    def remote(self, kind: type) -> type:
        return kind

    def get_actor(self, name: str, namespace: str) -> SimpleNamespace:
        del name, namespace
        if not self.connected:
            raise ConnectionError("the client is not connected")
        return SimpleNamespace(open=SimpleNamespace(remote=lambda: 1))

    def get(self, found: int, timeout: float) -> int:
        if found < 0:
            self.waited += timeout
            time.sleep(timeout)
            raise TimeoutError("it says nothing")
        return found


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def test_a_lost_connection_is_made_anew_once_however_many_streams_miss_it(ray: Ray) -> None:
    driver = Driver("head:6379")
    ray.connected = False
    opened: list[int] = []
    several = [threading.Thread(target=lambda: opened.append(driver.opened("n1")[1])) for _ in range(8)]
    for it in several:
        it.start()
    for it in several:
        it.join(20)
    assert (opened, ray.made) == ([1] * 8, 2)


def test_what_died_at_birth_is_tried_again_and_told_at_last(ray: Ray) -> None:
    ray.fails = ATTEMPTS - 1
    Driver("head:6379")
    assert ray.made == ATTEMPTS
    ray.connected, ray.fails = False, ATTEMPTS
    with pytest.raises(ConnectionAbortedError):
        Driver("head:6379")


def test_nodes_that_say_nothing_are_waited_for_once_and_keep_no_other_from_being_heard(ray: Ray) -> None:
    driver, until = Driver("head:6379"), time.monotonic() + 0.2
    silent = {"found": [], "why": "TimeoutError: it says nothing"}
    assert [driver.said(ref, until) for ref in (-1, -1, 7, -1)] == [silent, silent, {"found": 7, "why": ""}, silent]
    assert ray.waited <= 0.2
