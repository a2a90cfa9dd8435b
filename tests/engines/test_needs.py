"""Where an engine cannot be had, its tests are skipped with the reason; CI is to have it, and fails."""

from __future__ import annotations

import os

import pytest

from tests.engines import needs, sshd

ABSENT = sshd.PROGRAMS | {"no-such-program": "its-package"}


def test_what_is_missing_is_named_and_the_test_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"its-package|take root"):
        needs.require(ABSENT)


def test_ci_as_root_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(pytest.fail.Exception, match="its-package"):
        needs.require(ABSENT)


def test_others_are_skipped_in_ci_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="take root"):
        needs.require(ABSENT)
