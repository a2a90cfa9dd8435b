"""The bound: DDP's buckets as DDP makes them, and the ring's time by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.distributed
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.bench.bound import MIB, Bucket, bound, buckets_of, sent
from proving_ground.bench.workloads import PROFILES

PROFILE = {"forward_s": 1.0, "backward_s": 2.0, "optimizer_s": 0.5}
MEGABYTE_MBPS = 8.0  # at 8 Mb/s a megabyte takes a second


@pytest.fixture(scope="module")
def gradients() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((PROFILES / "resnet50-cpu.json").read_text())["backward"]
    return found


@pytest.mark.parametrize("bucket_mb", [1, 4, 25, 1000])
def test_buckets_are_those_of_ddp(gradients: list[dict[str, Any]], bucket_mb: int) -> None:
    tensors = [torch.empty(it["shape"]) for it in gradients]
    assign = torch.distributed._compute_bucket_assignment_by_size  # type: ignore[attr-defined]
    groups, _ = assign(tensors, [bucket_mb * MIB], [False] * len(tensors))
    expected = [sum(tensors[index].numel() for index in group) * 4 for group in groups]
    assert [it.wire_bytes for it in buckets_of(gradients, bucket_mb)] == expected


def test_fp16_halves_what_is_sent_but_not_the_buckets(gradients: list[dict[str, Any]]) -> None:
    whole, half = buckets_of(gradients, 4), buckets_of(gradients, 4, "fp16")
    assert [it.wire_bytes / 2 for it in whole] == [it.wire_bytes for it in half]


def test_communication_behind_the_backward_pass_costs_nothing() -> None:
    found = bound(PROFILE, [Bucket(1e6, 0.5)], 2, MEGABYTE_MBPS)
    assert (found.step_s, found.exposed_s, found.comm_s) == (3.5, 0.0, 1.0)


def test_what_is_ready_last_is_exposed() -> None:
    found = bound(PROFILE, [Bucket(1e6, 0.5), Bucket(1e6, 2.0)], 4, MEGABYTE_MBPS)
    assert found.exposed_s == pytest.approx(1.5)
    assert found.step_s == pytest.approx(5.0)


def test_buckets_wait_for_each_other() -> None:
    found = bound(PROFILE, [Bucket(3e6, 0.5), Bucket(1e6, 1.0)], 2, MEGABYTE_MBPS)
    assert found.exposed_s == pytest.approx(0.5 + 3 + 1 - 2)


def test_one_node_sends_nothing() -> None:
    assert bound(PROFILE, [Bucket(1e9, 2.0)], 1, 1.0).step_s == 3.5


def test_load_stretches_the_passes_and_pace_the_optimizer_too() -> None:
    assert bound(PROFILE, [], 1, 1.0, load=2).step_s == 6.5
    assert bound(PROFILE, [], 1, 1.0, pace=2).step_s == 7.0


@given(st.integers(2, 64), st.floats(1, 1e5), st.lists(st.tuples(st.floats(1, 1e9), st.floats(0, 2)), max_size=9))
def test_a_bound_is_never_below_its_parts(nodes: int, link_mbps: float, raw: list[tuple[float, float]]) -> None:
    buckets = [Bucket(size, ready) for size, ready in sorted(raw, key=lambda it: it[1])]
    found = bound(PROFILE, buckets, nodes, link_mbps)
    assert found.step_s >= 3.5
    assert found.step_s >= 1.0 + found.comm_s
    assert 0 <= found.exposed_s <= found.comm_s + 1e-9


def test_a_step_of_local_updates_sends_its_share_of_a_round_and_hides_nothing() -> None:
    profile: dict[str, Any] = PROFILE | {
        "backward": [{"shape": [100_000], "ready_s": 0.5}, {"shape": [150_000], "ready_s": 2.0}]
    }
    settings = {"bucket_mb": 25.0, "compression": "none", "updates": "diloco", "sync_every": 8}
    (bucket,) = sent(profile, settings)
    assert bucket.wire_bytes == 1e6 / 8
    found = bound(profile, [bucket], 4, MEGABYTE_MBPS)
    assert found.exposed_s == pytest.approx(2 * 3 / 4 / 8), "the ring's time of a megabyte, every eighth step"
    every_step = {"bucket_mb": 25.0, "compression": "none"}
    assert sent(profile, every_step) == buckets_of(profile["backward"], 25.0), "older plans know no other way"
