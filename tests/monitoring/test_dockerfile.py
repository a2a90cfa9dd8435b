"""The exporter's image has what the exporter imports, and no more."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "monitoring" / "Dockerfile").read_text()
PACKAGES = {"yaml": "pyyaml", "prometheus_client": "prometheus-client"}  # import → package, where they differ
IMPORTED = """
import contextlib, io, json, sys
from proving_ground.monitoring.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["export", "--help"])
print(json.dumps(sorted(sys.modules)))
"""


def listed() -> list[str]:
    """The packages that the image installs."""
    (line,) = re.findall(r"^\s+((?:[a-z0-9-]+ )+[a-z0-9-]+)$", TEXT, re.MULTILINE)
    return str(line).split()


def test_packages_and_folders_are_those_that_are_imported() -> None:
    bare = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}  # it imports itself
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], check=True, capture_output=True, text=True, cwd=ROOT, env=bare
    )
    found = set(json.loads(done.stdout))
    roots = {name.partition(".")[0] for name in found} - {*sys.stdlib_module_names, "proving_ground", "cython_runtime"}
    assert set(listed()) == {PACKAGES.get(name, name) for name in roots if not name.startswith("_")}
    files = [f"proving_ground.{name}".replace("/", ".") for name in re.findall(r"(training/[\w/]+)\.py", TEXT)]
    copied = {name.removesuffix(".__init__") for name in files}
    assert copied == {name for name in found if name.startswith("proving_ground.training")}


def test_it_is_nobody_and_its_versions_are_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    assert not [name for name in listed() if not re.search(rf"^{name}==", pins, re.MULTILINE)]
    assert TEXT.index("USER 10001:10001\n") < TEXT.index("CMD ")
