"""What pages say is short: sentences of 20 words on average, and none that nobody reads to its end."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest

from proving_ground.reports.recovery import page as recovery_page
from proving_ground.reports.recovery import results as recovery_results
from proving_ground.reports.scaling import page, results
from proving_ground.search import page as search_page
from proving_ground.search.results import analyse
from tests.reports import synthetic
from tests.reports.recovery import synthetic as broken
from tests.search import recorded

AVERAGE, LONGEST = 20, 40  # words of a sentence; a line that lists what was measured may be as long
UNREAD = r"<(script|style|svg|head|table|code)\b.*?</\1>"
BLOCKS = r"</?(p|li|h\d|div|section|figcaption|td|th|dd|dt|summary|br|ul|ol|header|nav|footer|main)\b[^>]*>"
LISTS = r"^By node:"


def sentences(text: str) -> list[str]:
    """Those of a page; tables, pictures and code aside."""
    shown = re.sub(BLOCKS, "\n", re.sub(UNREAD, " ", text, flags=re.DOTALL))
    lines = (it.strip() for it in html.unescape(re.sub(r"<[^>]+>", "", shown)).split("\n"))
    found = (it for line in lines if not re.match(LISTS, line) for it in re.split(r"(?<=[.!?;])\s+", line))
    return [it for it in found if words(it) > 3]


def words(sentence: str) -> int:
    """How many; a number with its point is one."""
    return len(re.findall(r"[\w.,]*\w", sentence))


def scaling(folder: Path) -> str:
    return page.html(results.analyse(synthetic.make(folder, synthetic.Knobs(nodes=(1, 2), scalings=("weak",)))))


def recovery(folder: Path) -> str:
    return recovery_page.html(recovery_results.analyse(broken.make(folder, broken.Knobs())))


def search(folder: Path) -> str:
    return search_page.html(analyse(recorded.write(folder, recorded.three())))


def shown(text: str) -> str:
    """What a page says, its tables and pictures too."""
    told = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", told))


def other_bars(text: str) -> list[str]:
    """Bars that are not drawn: a threshold and an interval have names of their own."""
    return re.findall(r"\bbars?\b.{0,40}", text.replace("thick bar", ""), flags=re.IGNORECASE)


@pytest.mark.parametrize(("made", "says"), [(scaling, "threshold"), (recovery, "thick bar"), (search, "trial")])
def test_a_bar_is_a_thing_that_is_drawn(made: Callable[[Path], str], says: str, tmp_path: Path) -> None:
    told = shown(made(tmp_path))
    assert says in told
    assert other_bars(told) == []
    assert other_bars(told.replace(says, "bar")), "called so it would be seen"


@pytest.mark.parametrize("made", [scaling, recovery, search])
def test_sentences_are_short(made: Callable[[Path], str], tmp_path: Path) -> None:
    found = sentences(made(tmp_path))
    assert len(found) > 20
    assert mean(map(words, found)) <= AVERAGE
    assert [it for it in found if words(it) > LONGEST] == []


def test_a_long_one_is_found() -> None:
    long = " ".join(["word"] * 41)
    assert sentences(f"<p>{long}.</p><table><tr><td>{long}</td></tr></table><p>Short.</p>") == [f"{long}."]
