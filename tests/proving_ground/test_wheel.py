"""The wheel: built, installed into an empty folder, and used from another one without the clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("bench", "chaos", "infra", "loop", "monitoring", "reports", "search", "serving", "training")
LEFT_OUT = (".md", ".png", ".txt", "Dockerfile", ".dockerignore")
"""What no program reads."""


def sources(root: Path) -> list[Path]:
    """Every file of the packages, but what running leaves behind and what was measured."""
    found = [path for it in (*PACKAGES, "proving_ground") for path in (root / it).rglob("*") if path.is_file()]
    return [it for it in found if "__pycache__" not in it.parts and "measured" not in it.parts]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for it in (*sources(ROOT), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))):
        target = folder / "clone" / it.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(it, target)
    for name in PACKAGES:
        (folder / "clone" / "proving_ground" / name).symlink_to(Path("..") / name)
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(folder / "clone")]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    site = wheel.parent / "site"
    install = ["install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    return site


def python(site: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    env |= {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_everything_that_a_program_reads_is_in_it(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    kept = [it.relative_to(ROOT) for it in sources(ROOT) if not it.name.endswith(LEFT_OUT)]
    wanted = {str(it if it.parts[0] == "proving_ground" else "proving_ground" / it) for it in kept}
    assert wanted - inside == set()
    tops = {it.partition("/")[0] for it in inside}
    assert {it for it in tops if not it.endswith(".dist-info")} == {"proving_ground"}, "one import name"


def test_it_runs_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    assert python(site, tmp_path, "-m", "proving_ground", "bench", "--version").stdout.startswith("proving-ground ")
    run = python(site, tmp_path, "-m", "proving_ground", "bench", "run", "--suite", "smoke", "--cluster", "fake")
    assert run.returncode == 0, run.stderr
    assert "verdict: pass" in run.stdout
    assert (tmp_path / "runs/latest/report.html").exists()
    assert '"commit": null' in (tmp_path / "runs/latest/provenance.json").read_text()


@pytest.mark.parametrize("program", ["bench", "chaos"])
def test_it_runs_on_nodes_of_this_machine(program: str, site: Path, tmp_path: Path) -> None:
    """The fork server, its agents, the trainers and the report are all of the installed copy."""
    run = python(site, tmp_path, "-m", "proving_ground", program, "run", "--suite", "smoke", "--cluster", "local")
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "runs/latest/report.html").exists()
    assert '"commit": null' in (tmp_path / "runs/latest/provenance.json").read_text()


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["chaos", "plan", "--suite", "smoke", "--cluster", "fake"], 0, "node_kill"),
        (["monitor", "alerts"], 0, "CheckpointFailed"),
        (["report"], 2, "reports: no run 'latest' under runs; newest runs: none yet"),
        (["infra", "cost", "dev"], 2, "no Pulumi.STACK.yaml here; allowed: a clone of the project"),
        (["infra", "check"], 2, "no Pulumi.STACK.yaml here; allowed: a clone of the project"),
        (["train", "run", "--config", "none.toml"], 2, "none.toml"),
    ],
)
def test_what_needs_the_clone_says_so_in_one_line(
    words: list[str], status: int, says: str, site: Path, tmp_path: Path
) -> None:
    done = python(site, tmp_path, "-m", "proving_ground", *words)
    assert done.returncode == status, done.stderr
    assert says in (done.stderr if status else done.stdout)
    assert done.stderr.count("\n") == (1 if status else 0)


def test_the_commands_script_and_the_fixture_are_installed(site: Path, tmp_path: Path) -> None:
    """`pg` is a console script, and pytest finds the plugin by its entry point."""
    done = python(site, tmp_path, str(site / "bin" / "pg"), "--version")
    assert done.stdout.startswith("proving-ground ")
    assert "scaling" in python(site, tmp_path, "-m", "pytest", "--fixtures", "-q", "-p", "no:cacheprovider").stdout


def test_a_repository_around_it_is_not_taken_for_ours(site: Path, tmp_path: Path) -> None:
    """The mutant of provenance: the installed copy lies in a git repository of somebody else."""
    outer = tmp_path / "outer"
    shutil.copytree(site, outer / "site")
    subprocess.run(["git", "init", "-q", str(outer)], check=True)
    who = ["-c", "user.email=a@b", "-c", "user.name=a"]
    subprocess.run(["git", "-C", str(outer), *who, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    code = "from proving_ground.bench import provenance; print(provenance.git('rev-parse', 'HEAD'))"
    assert python(outer / "site", outer, "-c", code).stdout == "None\n"
