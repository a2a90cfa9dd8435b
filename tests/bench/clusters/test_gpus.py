"""Which node uses which GPU; and samples through the management library, of which a double stands in here.

On a real GPU: `tests/training/test_gpu.py`.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from proving_ground.bench.agent.orders import SHARING
from proving_ground.bench.clusters.local import gpus
from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.bench.protocols import ProcessSpec


class NVMLError(Exception):
    """What the library raises."""


class Library:
    """Two GPUs, the second without a power sensor; `broken`: no driver."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
    NVMLError = NVMLError

    def __init__(self, *, broken: bool = False) -> None:
        self.broken, self.users = broken, 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        if self.broken:
            raise NVMLError("no driver")
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=90 + device, memory=10)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=1000 * (device + 1), total=5000)

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:  # noqa: N802
        if device:
            raise NVMLError("not supported")
        return 350_500

    def nvmlDeviceGetTemperature(self, _device: int, sensor: int) -> int:  # noqa: N802
        return {self.NVML_TEMPERATURE_GPU: 64}[sensor]

    def nvmlDeviceGetClockInfo(self, _device: int, clock: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 2619}[clock]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _device: int) -> int:  # noqa: N802
        return 4


NODES = ("n1", "n2", "n3")


def seen(allotment: gpus.Allotment, *names: str, **env: str) -> list[str | None]:
    """What CUDA_VISIBLE_DEVICES is for a process of each node; None: left as it is."""
    specs = [ProcessSpec(name, 0, ("python",), env) for name in names]
    return [allotment.variables(it).get("CUDA_VISIBLE_DEVICES") for it in specs]


@pytest.mark.parametrize(
    ("usable", "own", "shared"),
    [
        ("0,1,2", ["0", "1", "2"], ["0", "1", "2"]),
        ("4,5,6,7,8,9,10", ["4,5", "6,7", "8,9"], ["4,5", "6,7", "8,9"]),
        ("0,1", ["", "", ""], ["0,1", "1,0", "0,1"]),
        ("", [None, None, None], [None, None, None]),
    ],
    ids=["one each", "two each", "fewer than nodes", "none"],
)
def test_nodes_get_as_many_gpus_each_or_none(
    monkeypatch: pytest.MonkeyPatch, usable: str, own: list[str | None], shared: list[str | None]
) -> None:
    """NCCL refuses two ranks on one GPU: nobody is given one that another node computes on, unless it says so."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", usable)
    allotment = gpus.Allotment.of(NODES)
    assert seen(allotment, *NODES) == own
    assert seen(allotment, *NODES, **SHARING) == shared
    assert [allotment.count(name) for name in NODES] == [len((it or "").split(",")) if it else 0 for it in own]
    assert bool(allotment.withheld) == (own == ["", "", ""])


def test_a_node_that_only_coordinates_takes_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    allotment = gpus.Allotment.of(NODES, range(2, 3))
    assert seen(allotment, *NODES) == ["0", "1", ""]
    assert [allotment.count(name) for name in NODES] == [1, 1, 0]
    assert allotment.withheld == ""


def test_a_run_is_told_that_its_nodes_compute_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    told = gpus.Allotment.of(NODES).withheld
    assert told.startswith("1 GPU for 3 nodes: they compute on CPUs")


def test_one_node_has_all_gpus_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    allotment = gpus.Allotment.of(["n1"])
    assert (seen(allotment, "n1"), allotment.count("n1")) == ([None], 2)


def test_gpus_of_a_driver_that_does_not_count_them_are_hidden_from_several_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "usable_gpus", lambda: None)
    assert seen(gpus.Allotment.of(NODES), *NODES) == ["", "", ""]
    assert seen(gpus.Allotment.of(NODES), *NODES, **SHARING) == [None, None, None]
    assert [gpus.Allotment.of(NODES).count(name) for name in NODES] == [0, 0, 0]
    assert gpus.Allotment.of(NODES).shared == 1
    assert seen(gpus.Allotment.of(["n1"]), "n1") == [None]
    assert gpus.Allotment.of(["n1"]).count("n1") is None


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    double = Library()
    monkeypatch.setitem(sys.modules, "pynvml", double)
    return double


def test_every_gpu_is_sampled_and_a_missing_sensor_is_a_gap(library: Library) -> None:
    watcher = gpus.Watcher()
    first, second = watcher.sample()["gpus"]
    assert first == {
        "index": 0, "utilisation": 90.0, "memory_used": 1000.0, "memory_total": 5000.0, "power_w": 350.5,
        "temperature_c": 64.0, "sm_mhz": 1980.0, "memory_mhz": 2619.0, "throttle_reasons": 4.0,
    }  # fmt: skip
    assert second.keys() == first.keys() - {"power_w"}
    watcher.close()
    watcher.close()
    assert library.users == 0
    assert watcher.sample() == {}


@pytest.mark.parametrize("double", [None, Library(broken=True)], ids=["no library", "no driver"])
def test_without_gpus_there_is_nothing_to_sample(monkeypatch: pytest.MonkeyPatch, double: Library | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", double)
    watcher = gpus.Watcher()
    assert watcher.sample() == {}
    watcher.close()


def test_the_real_library_has_all_that_is_asked_of_it() -> None:
    real = pytest.importorskip("pynvml")
    names = [name for name in dir(Library) if name.startswith(("nvml", "NVML"))]
    assert [name for name in names if not hasattr(real, name)] == []
    assert issubclass(real.NVMLError, Exception)


def test_the_local_cluster_s_samples_have_the_gpus(library: Library) -> None:
    cluster = LocalCluster(abilities=())
    cluster._gpus = gpus.Watcher()
    assert [it["index"] for it in cluster.sample()["gpus"]] == [0, 1]
    cluster._gpus.close()
    assert library.users == 0
    assert "gpus" not in cluster.sample()
