"""Ray: a head with its dashboard, and workers for each pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proving_ground.infra.cluster.labels import GPU_TAINT, POOL_LABEL, RAY, SPOT_TAINT
from proving_ground.infra.cluster.manifest import App, Manifest, deployment, service, sizes

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts
    from proving_ground.infra.config import Pool

HEAD_PORTS = {"gcs": 6379, "client": 10001, "dashboard": 8265, "metrics": 8080}
USER = 1000  # the image's own
SHM: Manifest = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
SHM_MOUNT: Manifest = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - Ray keeps its objects there


def manifests(facts: Facts) -> list[Manifest]:
    """Head, its service, and the workers of each pool; nothing where `ray_workers` is null.

    The first pool starts with `ray_workers`; the others with none, since a waiting worker would keep a machine running:
    `kubectl -n pg-ray scale deploy/ray-worker-POOL --replicas=N`.
    """
    wanted = facts.environment.kubernetes.ray_workers
    if wanted is None:
        return []
    head = _head(facts)
    first = facts.environment.pools[0].name
    workers = [
        deployment(_worker(pool, facts), wanted if pool.name == first else 0) for pool in facts.environment.pools
    ]
    return [deployment(head), service(head), *workers]


def _head(facts: Facts) -> App:
    start = ("ray", "start", "--head", "--block", "--port=6379", "--dashboard-host=0.0.0.0", "--num-cpus=0")
    return App(
        name="ray-head",
        namespace=RAY,
        image=_image(facts, gpu=False),
        command=(*start, "--metrics-export-port=8080", "--disable-usage-stats"),
        ports=HEAD_PORTS,
        resources=sizes("500m", "2Gi"),
        user=USER,
        volumes=(SHM,),
        mounts=(SHM_MOUNT,),
    )


def _worker(pool: Pool, facts: Facts) -> App:
    gpus = facts.gpus(pool.name)
    resources = sizes("1", "4Gi")
    if gpus:
        resources["requests"]["nvidia.com/gpu"] = resources["limits"]["nvidia.com/gpu"] = str(gpus)
    tolerations = [
        {"key": key, "operator": "Exists"} for key, wanted in ((GPU_TAINT, pool.gpu), (SPOT_TAINT, pool.spot)) if wanted
    ]
    place = {"nodeSelector": {POOL_LABEL: pool.name}} if facts.on_azure else {}
    return App(
        name=f"ray-worker-{pool.name}",
        namespace=RAY,
        image=_image(facts, gpu=bool(gpus)),
        command=("ray", "start", "--block", f"--address=ray-head.{RAY}:6379", "--metrics-export-port=8080"),
        ports={"metrics": 8080},
        resources=resources,
        user=USER,
        extra={**place, **({"tolerations": tolerations} if tolerations else {})},
        volumes=(SHM,),
        mounts=(SHM_MOUNT,),
    )


def _image(facts: Facts, *, gpu: bool) -> str:
    image = facts.image("ray")
    return f"{image}-gpu" if gpu else image
