"""What a run says of the machine that it ran on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from proving_ground.bench import provenance


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["NVIDIA H200"], "NVIDIA H200"),
        (["NVIDIA H100 80GB HBM3"] * 8, "8 × NVIDIA H100 80GB HBM3"),
        (["NVIDIA A100", "Tesla T4", "Tesla T4"], "NVIDIA A100 + 2 × Tesla T4"),
    ],
)
def test_gpus_are_called_as_their_driver_calls_them(
    names: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the driver's own command, which a script stands for."""
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\n" + "".join(f"echo '{it}'\n" for it in names))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(provenance, "usable_gpus", lambda: [str(at) for at in range(len(names))])
    assert provenance.host()["gpu"] == words


def test_where_there_is_none_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "usable_gpus", list)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("asked"))
    assert provenance.gpu_models() == "none"


def test_a_driver_that_cannot_be_asked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "usable_gpus", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    assert provenance.gpu_models() == "not known"
