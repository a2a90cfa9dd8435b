"""The menu: `nox -l` lists what this project can do. One environment serves all sessions.

Arguments after `--` go to the command behind a session: `nox -s bench -- --nodes 1,2,4`.
"""

import hashlib
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

HERE = Path(__file__).parent
FOLDERS = ["infra", "training", "bench", "chaos", "reports", "monitoring", "tests"]


def install(session: nox.Session, extras: str = "dev") -> None:
    """Install the pinned packages, unless this environment already has exactly these."""
    pins = [HERE / "pyproject.toml", HERE / "constraints.txt"]
    wanted = hashlib.sha256(b"".join(pin.read_bytes() for pin in pins)).hexdigest()
    stamp = Path(session.virtualenv.location) / f"installed-{extras}"
    if not stamp.exists() or stamp.read_text() != wanted:
        session.install("-c", "constraints.txt", "-e", f".[{extras}]")
        stamp.write_text(wanted)


@nox.session(venv_location=".venv")
def bench(session: nox.Session) -> None:
    """Measure how training scales: `nox -s bench -- --nodes 1,2,4,8`; ends with a table and report.html."""
    install(session)
    session.run("python", "-m", "bench", "run", *session.posargs)


@nox.session(venv_location=".venv")
def lint(session: nox.Session) -> None:
    """Style, import rules between the folders."""
    install(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache")


@nox.session(venv_location=".venv")
def types(session: nox.Session) -> None:
    """mypy --strict over everything."""
    install(session)
    session.run("mypy")


@nox.session(venv_location=".venv")
def tests(session: nox.Session) -> None:
    """All tests with coverage; arguments go to pytest."""
    install(session)
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(venv_location=".venv")
def lock(session: nox.Session) -> None:
    """Resolve pyproject.toml again into constraints.txt (no index addresses in it)."""
    install(session)
    session.run("uv", "pip", "compile", "pyproject.toml", "--all-extras", "--universal", "--python-version", "3.11",
                "--no-emit-index-url", "--no-header", "--no-annotate", "-q", "-o", "constraints.txt", *session.posargs)
