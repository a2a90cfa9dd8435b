"""The menu: `nox -l` lists what this project can do. One environment, `.venv`, serves all sessions.

Arguments after `--` go to the command behind a session: `nox -s bench -- --nodes 1,2,4`.
"""

import hashlib
import importlib.util
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "none"  # `environment` below makes the one that all sessions share
nox.options.sessions = ["lint", "types", "tests"]

HERE = Path(__file__).parent
VENV = HERE / ".venv"
PYTHON = str(VENV / "bin" / "python")
EXTRAS = "dev,infra,stores,live,monitoring,frameworks,search,load"


def environment(session: nox.Session) -> None:
    """Make `.venv` with the pinned packages, unless it has exactly these: by uv where it is installed, else by pip.

    It has pip of its own in both cases: Pulumi asks `python -m pip list` which plugins a program needs.
    """
    pins = b"".join((HERE / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    wanted, stamp = hashlib.sha256(pins).hexdigest(), VENV / "installed"
    has_pip = (VENV / "bin" / "pip").exists()
    if has_pip and stamp.exists() and stamp.read_text() == wanted:
        return
    session.log("installing the pinned packages into .venv: once, some minutes and 6 GB")
    packages = ["-c", str(HERE / "constraints.txt"), "-e", f"{HERE}[{EXTRAS}]"]
    session.run(sys.executable, "-m", "venv", str(VENV))
    if importlib.util.find_spec("uv"):
        session.run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", PYTHON, *packages)
    else:
        session.run(PYTHON, "-m", "pip", "install", "--quiet", *packages)
    stamp.write_text(wanted)


def run(session: nox.Session, *words: str) -> None:
    """Run a module of the environment, from the project's folder; imports may leave bytecode, which makes them fast."""
    environment(session)
    session.chdir(HERE)
    session.run(PYTHON, "-m", *words, external=True, env={"PYTHONDONTWRITEBYTECODE": ""})


@nox.session
def bench(session: nox.Session) -> None:
    """Measure how training scales: `nox -s bench -- --nodes 1,2,4,8`; ends with a table and report.html."""
    run(session, "bench", "run", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Break training on purpose and judge how it recovers: `nox -s chaos -- --suite kill --trials 5`."""
    run(session, "chaos", "run", *session.posargs)


@nox.session
def search(session: nox.Session) -> None:
    """Search hyper-parameters with the trainer as it is: `nox -s search -- --suite smoke`."""
    run(session, "search", "run", *session.posargs)


@nox.session
def loop(session: nox.Session) -> None:
    """A stack from nothing to a report and back: `nox -s loop -- dev --hours 2 --budget 50`; see loop/README.md."""
    run(session, "loop", *session.posargs)


@nox.session
def validate(session: nox.Session) -> None:
    """Long proofs, over many sittings: `nox -s validate -- NAME`, without NAME a list; see reports/measured."""
    run(session, "tests.validations", *session.posargs)


@nox.session
def microbench(session: nox.Session) -> None:
    """Our own hot paths by pytest-benchmark: `nox -s microbench -- --benchmark-autosave`."""
    run(
        session, "pytest", "tests/benchmarks/bench_hot_paths.py", "--benchmark-columns=median,iqr,ops", *session.posargs
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and the import rules between the folders."""
    run(session, "ruff", "check", ".")
    run(session, "ruff", "format", "--check", ".")
    session.run(str(VENV / "bin" / "lint-imports"), "--no-cache", external=True)


@nox.session
def types(session: nox.Session) -> None:
    """Types: `mypy --strict` over everything."""
    run(session, "mypy")


# In the order of folders: else files of few but long tests come last, and one process waits for the other.
BY_TWO = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
MOST = ("-m", "not apiserver and not image and not minutes and not testbed", *BY_TWO, "--durations=60")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests but those of `infra-tests`, `engine-tests` and `pulumi-tests`, by two processes; or what is asked."""
    run(session, "pytest", *(session.posargs or MOST))


@nox.session
def coverage(session: nox.Session) -> None:
    """The same tests, and which lines none of them reaches; half as long again, as trainers are traced too."""
    run(session, "pytest", *(session.posargs or MOST), "--cov", "--cov-report=term:skip-covered")


@nox.session(name="gpu-tests")
def gpu_tests(session: nox.Session) -> None:
    """What only a real GPU can show; one is enough, and without one this fails."""
    environment(session)
    session.run(PYTHON, "-c", "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 'no NVIDIA GPU')")
    run(session, "pytest", "tests/training/test_gpu.py", *session.posargs)


@nox.session(name="infra-tests")
def infra_tests(session: nox.Session) -> None:
    """Infrastructure against Pulumi's mocks and a real API server (built once, some minutes; needs Go and etcd)."""
    most = ["-m", "not image and not testbed", "tests/infra", "tests/training/test_stores.py"]
    run(session, "pytest", *most, *session.posargs)


@nox.session(name="engine-tests")
def engine_tests(session: nox.Session) -> None:
    """What takes minutes on real Slurm, Kubernetes or Ray: nodes that an engine takes away, and may not give again."""
    run(session, "pytest", "-m", "minutes", "tests/engines", "-rs", *session.posargs)


@nox.session(name="pulumi-tests")
def pulumi_tests(session: nox.Session) -> None:
    """`local` by the real Pulumi CLI on a real node: up, up, change, down, interruptions (tests/infra/testbed)."""
    run(session, "pytest", "tests/infra/testbed", "tests/infra/test_pulumi_cli.py", "-rs", *session.posargs)


@nox.session
def testbed(session: nox.Session) -> None:
    """A real Kubernetes on this machine, in the background: `nox -s testbed -- up --nodes 3`, `-- down`."""
    run(session, "tests.infra.testbed", *session.posargs)


@nox.session
def image(session: nox.Session) -> None:
    """The trainer's image, built by buildah and tried: trains as nobody on a read-only root; some minutes, 12 GB."""
    run(session, "pytest", "-s", "tests/infra/test_image_build.py", *session.posargs)


@nox.session(name="monitoring-tests")
def monitoring_tests(session: nox.Session) -> None:
    """Monitoring with the real Prometheus and Alertmanager (Debian: prometheus, prometheus-alertmanager)."""
    run(session, "pytest", "tests/monitoring", "tests/reports/recovery/test_alerts.py", *session.posargs)


@nox.session
def cost(session: nox.Session) -> None:
    """What a stack costs: `nox -s cost -- dev --hours 8`."""
    run(session, "infra", "cost", *session.posargs)


@nox.session
def preview(session: nox.Session) -> None:
    """What `up` would change: `nox -s preview -- dev`; needs the Pulumi CLI."""
    run(session, "infra", "preview", *session.posargs)


@nox.session
def up(session: nox.Session) -> None:
    """Stand a cluster up: `nox -s up -- dev`; needs the Pulumi CLI and credentials."""
    run(session, "infra", "up", *session.posargs)


@nox.session
def down(session: nox.Session) -> None:
    """Take a cluster away: `nox -s down -- dev`."""
    run(session, "infra", "down", *session.posargs)


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve pyproject.toml again into the lists of pins: exact versions, no addresses."""
    what = ["pyproject.toml", "--all-extras", "--universal", "--python-version", "3.11", "-o", "constraints.txt"]
    how = ["--no-emit-index-url", "--no-header", "--no-annotate", "--quiet"]
    run(session, "uv", "pip", "compile", *what, *how, *session.posargs)
    for group, pins in (("scoring", "serving/environment.txt"), ("azureml", "tests/infra/azureml.txt")):
        shutil.copy(HERE / "constraints.txt", HERE / pins)  # what can be the same, stays the same
        what = ["--group", group, "--universal", "--python-version", "3.11", "-o", pins]
        run(session, "uv", "pip", "compile", *what, *how)
