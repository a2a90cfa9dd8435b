"""What the link allows: the shortest step that profile, buckets and link rate permit. Called by `bench.plan`.

Worked out before anything runs and kept in `plan.json`, so that nobody can fit it to the result. A ring all-reduce of S
bytes over n nodes with links of B bytes/s takes at least 2(n-1)/n * S/B (Patarasuk and Yuan, 2009); a bucket is sent
when its last gradient is ready and the bucket before it was sent; what the backward pass does not hide is exposed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIB = 2**20
GRADIENT_BYTES = {"none": 4, "fp16": 2}  # of one value on the wire, by compression
COMPUTED_BYTES = 4  # of one value in a bucket: DDP sizes buckets before compression


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together: bytes on the wire, and when they are ready (s after the backward pass began)."""

    wire_bytes: float
    ready_s: float


@dataclass(frozen=True)
class Bound:
    """The shortest possible step in seconds, and what of it is communication that nothing hides."""

    step_s: float
    exposed_s: float
    comm_s: float


def buckets_of(gradients: Sequence[Mapping[str, Any]], bucket_mb: float, compression: str = "none") -> list[Bucket]:
    """DDP's buckets for a profile's gradients, in the order in which they become ready.

    A bucket is closed by the gradient that fills it to its size or beyond, as DDP's reducer does.
    """
    buckets, values = [], 0
    for gradient in gradients:
        values += math.prod(gradient["shape"])
        if values * COMPUTED_BYTES >= int(bucket_mb * MIB):
            buckets.append(Bucket(values * GRADIENT_BYTES[compression], gradient["ready_s"]))
            values = 0
    if values:
        buckets.append(Bucket(values * GRADIENT_BYTES[compression], gradients[-1]["ready_s"]))
    return buckets


def sent(profile: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Bucket]:
    """What a step sends, by the trainer's settings. With local updates a step has its share of a round's exchange.

    That is of all parameters, once in `sync_every` steps, and nothing hides it.
    """
    if settings.get("updates", "every_step") == "every_step":  # plans of before know no other way
        return buckets_of(profile["backward"], settings["bucket_mb"], settings["compression"])
    values = sum(math.prod(gradient["shape"]) for gradient in profile["backward"])
    return [Bucket(values * COMPUTED_BYTES / settings["sync_every"], profile["backward_s"])]


def bound(
    profile: Mapping[str, Any],
    buckets: Sequence[Bucket],
    nodes: int,
    link_mbps: float,
    pace: float = 1,
    load: float = 1,
) -> Bound:
    """The shortest step of `nodes` nodes on links of `link_mbps`.

    `pace` stretches all of the profile's times, `load` (samples of this step per sample of the profile's) those of
    forward and backward only: the optimizer works on weights, not on samples.
    """
    bytes_per_s = link_mbps * 1e6 / 8
    sent_s, comm_s = 0.0, 0.0
    for bucket in buckets:
        ring_s = 2 * (nodes - 1) / nodes * bucket.wire_bytes / bytes_per_s
        sent_s = max(sent_s, bucket.ready_s * pace * load) + ring_s
        comm_s += ring_s
    backward_s = profile["backward_s"] * pace * load
    exposed_s = max(0.0, sent_s - backward_s) if nodes > 1 else 0.0
    compute_s = profile["forward_s"] * pace * load + backward_s + profile["optimizer_s"] * pace
    return Bound(compute_s + exposed_s, exposed_s, comm_s)
