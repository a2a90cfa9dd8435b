"""What training/README.md says is so."""

from __future__ import annotations

from pathlib import Path

from proving_ground.training import train
from proving_ground.training.config import load, table
from proving_ground.training.events import EVENTS

FOLDER = Path(__file__).parents[2] / "training"
README = (FOLDER / "README.md").read_text()


def test_the_table_of_keys_is_the_code_s() -> None:
    assert table() in README


def test_every_event_and_file_is_explained() -> None:
    assert [name for name in EVENTS if f"| `{name}` |" not in README] == []
    files = {path.name for path in FOLDER.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert [name for name in files if f"`{name}`" not in README] == []


def test_the_python_api_trains_and_says_honestly_what_came_of_it() -> None:
    told: list[str] = []
    result = train(load(FOLDER / "configs" / "stocks.toml", sets=["epochs=1"]), tell=told.append)
    assert result.reason == "done"
    assert len(result.parameters_sha256) == 64
    assert 0.005 < result.metrics["rmse_log_return"] < 0.02
    assert "random walk" in told[-1]
    assert "beats_baseline" in told[-1]
