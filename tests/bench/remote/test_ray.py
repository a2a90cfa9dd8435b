"""What is asked of Ray, and how what it says is read. `tests/engines/test_raylets.py` has a real one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from proving_ground.bench.clusters import choose
from proving_ground.bench.clusters.options import described
from proving_ground.bench.clusters.remote.programs import run_program
from proving_ground.bench.clusters.remote.ray import RayOptions, RayPool, refused
from proving_ground.bench.clusters.remote.ray_driver import in_a_line
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError

PLAN = """\
ray.init('ray://head:10001', namespace='proving-ground')
n1  ray.remote(Shell).options(resources={'node:ADDRESS': 0.001}, num_cpus=0, num_gpus=8, \
max_restarts=-1, lifetime='detached')
n2  ray.remote(Shell).options(resources={'node:ADDRESS': 0.001}, num_cpus=0, num_gpus=8, \
max_restarts=-1, lifetime='detached')
"""


class Two:
    """A trial, of which only the size counts."""

    nodes = 2


def test_the_plan_says_which_actors_would_be_asked_for() -> None:
    pool = RayPool(RayOptions("ray://head:10001", gpus=8))
    assert pool.plan([], Two()) == PLAN  # type: ignore[arg-type] # see there


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ray:", "cluster ray: which one[?]"),
        ("ray:ray://head:10001,token_file=/none/there", "token_file = '/none/there': no such file"),
        ("ray:ray://head:10001,gpus=-1", "gpus"),
        ("ray:ray://head:10001,adress=x", "unknown option 'adress'.*did you mean 'address'"),
        ("ray:ray://head:10001,volume=here", "volume.*absolute path"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(SpecError, match=says) as why:
        choose(name)
    assert "\n" not in str(why.value)


def test_the_address_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://there:10001")
    assert RayPool(RayOptions()).options.address == "ray://there:10001"


def test_a_cluster_that_is_not_there_is_told_in_a_line_with_status_2() -> None:
    if find_spec("ray") is None:
        pytest.skip("not installed: ray (extra `search`)")
    with pytest.raises(SpecError, match=r"Ray does not answer at ray://127.0.0.1:1: .*refused") as why:
        _ = choose("ray:ray://127.0.0.1:1")[0].capacity
    assert "\n" not in str(why.value)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("UNAUTHENTICATED: Invalid or missing authentication token", SpecError),
        ("RuntimeError: Version mismatch: The cluster was started with: Ray: 2.60.0", SpecError),
        ("ModuleNotFoundError: No module named 'ray'", SpecError),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'python9'", SpecError),
        ("GetTimeoutError: Get timed out", ClusterError),
        ("Ray does not answer: ray client connection timeout", ClusterError),
    ],
)
def test_a_mistake_of_the_callers_is_told_from_a_bad_day(said: str, kind: type[Exception]) -> None:
    found = refused(said)
    assert type(found) is kind
    assert ("token_file=" in str(found)) == ("UNAUTH" in said)


def test_what_ray_says_becomes_one_line() -> None:
    stack = (
        "\x1b[36mray::Shell.__init__()\x1b[39m\nTraceback (most recent call last):\n  File x\nFileNotFoundError: 'py'"
    )
    assert in_a_line(RuntimeError(stack)) == "RuntimeError: FileNotFoundError: 'py'"
    assert in_a_line(RuntimeError("Version mismatch:\n  Ray: 1\n")) == "RuntimeError: Version mismatch: Ray: 1"
    assert in_a_line(ConnectionError("timeout\nmore")) == "Ray does not answer: timeout"
    assert in_a_line(KeyError()) == "KeyError: "


def test_only_what_says_nothing_of_a_node_is_no_loss_of_it() -> None:
    pool = RayPool(RayOptions("ray://head:10001"))
    assert pool.closed("Ray does not answer: away")
    assert not pool.closed("ActorUnavailableError: the node is dead")


def test_power_is_an_ability_where_a_program_is_named() -> None:
    for power in ("", "fence"):
        found = {it.name: it.yes for it in RayPool(RayOptions("ray://head:10001", power=power)).abilities()}
        assert found["power"] == bool(power)


def test_a_program_that_fails_is_told_with_its_last_line(tmp_path: Path) -> None:
    program = tmp_path / "fence"
    program.write_text("#!/bin/sh\necho one\necho no such machine $2 >&2\nexit 1\n")
    program.chmod(0o700)
    with pytest.raises(ClusterError, match=r"^ray: power=.*fence kill m9: no such machine m9$"):
        run_program("ray", "power", str(program), "kill", "m9")


def test_every_option_is_described() -> None:
    lines = described(RayOptions, "ray").splitlines()
    names = "address token_file cpus gpus python volume work wait_min emulated power"
    assert [line.split()[0] for line in lines[1:]] == names.split()
