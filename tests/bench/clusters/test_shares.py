"""CPU shares on both versions of control groups; version 2 on a folder that looks like one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from proving_ground.bench.clusters.local import groups, memory, shares, throttle
from proving_ground.bench.clusters.local.groups import Hierarchy, NoGroups, find_hierarchy, make_groups

V1 = "30 20 0:25 / {root} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "31 20 0:26 / {root} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a folder into what a control group looks like; in the kernel's, new folders have their files at once."""
    mkdir, rmdir = Path.mkdir, Path.rmdir

    def make(path: Path, **files: str) -> Path:
        mkdir(path, parents=True, exist_ok=True)
        for name, text in files.items():
            (path / name.replace("__", ".")).write_text(text)
        return path

    def new(self: Path, *, exist_ok: bool = False) -> None:
        if self.exists() and exist_ok:
            return
        mkdir(self)
        make(
            self, cgroup__controllers="cpu io memory", cgroup__subtree_control="", cgroup__procs="",
            cpu__max="max 100000", memory__max="max", memory__current="4096", memory__swap__max="max", io__max="",
            memory__events="low 0\noom_kill 2\n",
        )  # fmt: skip

    def remove(self: Path) -> None:
        if any(path.is_dir() for path in self.iterdir()):
            raise OSError(16, "Device or resource busy")
        for path in self.iterdir():
            path.unlink()
        rmdir(self)

    monkeypatch.setattr(Path, "mkdir", new)
    monkeypatch.setattr(Path, "rmdir", remove)
    return make


def cpu_place(mounts: Path, membership: Path) -> Hierarchy:
    return find_hierarchy("cpu", mounts=mounts, membership=membership)


def described(tmp_path: Path, mounts: str, membership: str) -> tuple[Path, Path]:
    (tmp_path / "mountinfo").write_text(mounts)
    (tmp_path / "membership").write_text(membership)
    return tmp_path / "mountinfo", tmp_path / "membership"


def test_version_2_with_a_delegated_controller(tmp_path: Path, group: Callable[..., Path]) -> None:
    root = group(tmp_path / "fs", cgroup__controllers="cpu io", cgroup__subtree_control="")
    own = group(root / "user", cgroup__controllers="memory", cgroup__subtree_control="")
    place = cpu_place(*described(tmp_path, V2.format(root=root), "0::/user\n"))
    assert place == Hierarchy(2, root), f"{own} has no cpu controller, the root has"
    assert (root / "cgroup.subtree_control").read_text() == "+cpu"
    assert not list(root.glob("proving-ground-*"))
    made = make_groups(place, "cpu", "r1", ["n1", "n2"])
    shares.set_shares(made, 0.2)
    assert (made.group / "n2" / "cpu.max").read_text() == "2000 10000"
    shares.set_shares(made, 2.5)
    assert (made.group / "n1" / "cpu.max").read_text() == "25000 10000"
    shares.set_shares(made, 0.05)
    assert (made.group / "n1" / "cpu.max").read_text() == "1000 20000", "the kernel takes no quota below 1 ms"
    shares.set_shares(made, None)
    assert (made.group / "n1" / "cpu.max").read_text() == "max 10000"
    (made.group / "n1" / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 1500000\n")
    assert shares.throttled_s(made) == {"n1": 1.5, "n2": 0.0}
    made.remove()
    assert not made.group.exists()


def test_version_2_memory_and_disk_share_the_groups(tmp_path: Path, group: Callable[..., Path]) -> None:
    root = group(tmp_path / "fs", cgroup__controllers="cpu io memory", cgroup__subtree_control="")
    mounts, membership = described(tmp_path, V2.format(root=root), "0::/\n")
    made = [
        make_groups(find_hierarchy(name, mounts=mounts, membership=membership), name, "r1", ["n1", "n2"])
        for name in (memory.CONTROLLER, throttle.CONTROLLER)
    ]
    assert made[0] == made[1]
    node = made[0].of("n1")
    memory.write_limit(2, node, 2**20)
    assert memory.counters(made[0], "n1") == {"usage_bytes": 4096, "limit_bytes": 2**20, "oom_kills": 2}
    assert (node / "memory.swap.max").read_text() == "0"
    memory.write_limit(2, node, None)
    assert memory.counters(made[0], "n1")["limit_bytes"] is None
    throttle.set_rate(made[1], "7:3", 1000)
    assert (node / "io.max").read_text() == "7:3 rbps=1000 wbps=1000"
    assert throttle.rate(made[1], "7:3") == 1000
    assert throttle.rate(made[1], "7:4") is None
    throttle.set_rate(made[1], "7:3", None)
    assert (node / "io.max").read_text() == "7:3 rbps=max wbps=max"
    assert throttle.rate(made[1], "7:3") is None
    assert shares.share(made[0], "n1") is None
    shares.set_share(made[0], "n1", 0.25)
    assert (shares.share(made[0], "n1"), shares.share(made[0], "n2")) == (0.25, None)
    made[0].remove()
    made[1].remove()


def test_no_controller_anywhere_says_what_was_tried(tmp_path: Path, group: Callable[..., Path]) -> None:
    root = group(tmp_path / "fs", cgroup__controllers="memory", cgroup__subtree_control="")
    with pytest.raises(NoGroups, match=f"{root}: the cpu controller is not delegated to it"):
        cpu_place(*described(tmp_path, V2.format(root=root), "0::/\n"))


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    with pytest.raises(NoGroups, match="no cgroup with the cpu controller is mounted"):
        cpu_place(*described(tmp_path, "1 2 0:3 / /proc rw - proc proc rw\n", "0::/\n"))


def test_version_1_prefers_the_own_group() -> None:
    places = groups.places("cpu", V1.format(root="/cg/cpu"), "3:cpu,cpuacct:/box\n0::/\n")
    assert places == [Hierarchy(1, Path("/cg/cpu/box")), Hierarchy(1, Path("/cg/cpu"))]


def test_a_read_only_hierarchy_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(NoGroups, match="/cg/cpu: Read-only file system"):
        cpu_place(*described(tmp_path, V1.format(root="/cg/cpu"), "3:cpu:/\n"))


@pytest.mark.root
def test_the_kernel_takes_what_is_written() -> None:
    made = make_groups(shares.place(), "cpu", f"test-{os.getpid()}", ["n1"])
    try:
        for cpus in (0.2, 0.01, 3.0, 0.5, None):
            shares.set_shares(made, cpus)
        assert shares.throttled_s(made) == {"n1": 0.0}
    finally:
        made.remove()
    assert not made.group.exists()
