"""What is carried to a node: the boot program, the agent's archive, the trainer's code. Called by `remote.cluster`."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from proving_ground.bench.child import ROOT
from proving_ground.bench.clusters.remote.pool import Member

OURS = ROOT / "proving_ground"
BOOT = OURS / "bench" / "agent" / "boot.py"
LEFT = OURS / "bench" / "agent" / "left.py"
PRELOAD = "proving_ground.training.warm"  # importing it imports what the trainer needs
SETTLED = (1980, 1, 1, 0, 0, 0)  # of every file in an archive: the same content, the same bytes


def greeting(member: Member, run_id: str, lease_s: float, volume: str, harness: str) -> bytes:
    """All that a node's Python gets on its standard input before the first frame; `harness` is this one, no other."""
    archive = agent()
    told = {
        "run": run_id, "node": member.name, "work": member.work, "lease_s": lease_s, "volume": volume,
        "address": member.address, "start": member.start, "first_s": max(lease_s, member.first_s),
        "bytes": len(archive), "harness": harness, "version": version(),
    }  # fmt: skip
    boot = BOOT.read_bytes()
    return f"{len(boot)}\n".encode() + boot + json.dumps(told).encode() + b"\n" + archive


@cache
def agent() -> bytes:
    """The archive that is the agent: `python agent.pyz`."""
    folder = OURS / "bench" / "agent"
    sources = [OURS / "__init__.py", OURS / "bench" / "__init__.py", *sorted(folder.glob("*.py"))]
    start = {"__main__.py": b"from proving_ground.bench.agent.serve import main\n\nmain()\n"}
    return _zipped(sources, start)


@cache
def version() -> str:
    """Of the agent: what its archive is, in 12 digits."""
    return hashlib.sha256(agent()).hexdigest()[:12]


@cache
def training() -> bytes:
    """The trainer's code and data."""
    inside = sorted((OURS / "training").rglob("*"))
    sources = [path for path in inside if path.is_file() and "__pycache__" not in path.parts]
    return _zipped([OURS / "__init__.py", *sources], {})


def _zipped(sources: Iterable[Path], more: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        files = {**more, **{str(path.relative_to(ROOT)): path.read_bytes() for path in sources}}
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, SETTLED), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
