"""Programs of ours as child processes: which they are, wherever they are started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from proving_ground.bench import child


def test_a_program_of_ours_is_the_caller_s_own_and_none_that_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, here, others = (tmp_path / name for name in ("ours", "here", "others"))
    for folder in (ours, here, others):
        (folder / "proving_ground").mkdir(parents=True)
        (folder / "proving_ground" / "__init__.py").touch()
        (folder / "proving_ground" / "told.py").write_text(f"print({folder.name!r})")
    monkeypatch.setattr(child, "ROOT", ours)
    monkeypatch.setenv("PYTHONPATH", str(others))
    done = subprocess.run(
        child.ours("told"), env=child.environment(), cwd=here, capture_output=True, text=True, check=True
    )
    assert done.stdout == "ours\n"
    assert child.environment({"A": "b"}) == {"A": "b", "PYTHONPATH": str(ours)}
