"""What trainers need: the shared volume, names for each other, and a PodTemplate a pool that jobs are made from."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from proving_ground.infra.cluster.access import PRIORITY
from proving_ground.infra.cluster.labels import (
    GPU_TAINT,
    JOBS_PATH,
    POOL_LABEL,
    SHARED_CLAIM,
    SHARED_PATH,
    SPOT_TAINT,
    TRAINER_ACCOUNT,
    TRAINER_SERVICE,
    TRAINING,
)
from proving_ground.infra.cluster.manifest import (
    PART_OF,
    RESTRICTED,
    TMP,
    TMP_MOUNT,
    USER,
    Manifest,
    gib,
    pod_security,
    selector,
    sizes,
    thing,
)
from proving_ground.infra.skus import for_one_pod

if TYPE_CHECKING:
    from proving_ground.infra.cluster.facts import Facts
    from proving_ground.infra.config import Pool, Volume

FILE_SECRET = "shared-files"  # noqa: S105 - the name of one
NOTICE_S = 30  # what a spot machine is given before it goes


def manifests(facts: Facts) -> list[Manifest]:
    """Volume, service and templates."""
    templates = [pod_template(pool, facts) for pool in facts.environment.pools]
    return [*volume(facts), names(facts), *templates]


def names(facts: Facts) -> Manifest:
    """Gives the pods of a job names before they are ready: `<job>-<index>.trainer`."""
    port = {"name": "rendezvous", "port": facts.environment.kubernetes.ports.rendezvous}
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector("trainer"),
        "ports": [port],
    }
    return thing("v1", "Service", TRAINER_SERVICE, TRAINING, spec=spec)


def pod_template(pool: Pool, facts: Facts) -> Manifest:
    """The trainer's pod on a pool's machines. `job` puts it into an Indexed Job; a bench may set another command."""
    labels = {**PART_OF, **selector("trainer"), "proving-ground/pool": pool.name}
    if facts.trainer_client_id is not None:
        labels["azure.workload.identity/use"] = "true"
    template = {
        "metadata": {"labels": labels, "annotations": {"proving-ground/scrape": "true"}},
        "spec": _pod(pool, facts),
    }
    return thing("v1", "PodTemplate", template_name(pool.name), TRAINING, template=template)


def job(template: Manifest, name: str, nodes: int) -> Manifest:
    """An Indexed Job of `nodes` pods of a PodTemplate: index 0 is where they meet, each index is a node's rank.

    A pod that fails ends the job: the others could not go on without it.
    """
    pod = copy.deepcopy(template["template"])
    count = next(item for item in pod["spec"]["containers"][0]["env"] if item["name"] == "NODES")
    count["value"] = str(nodes)
    spec = {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimit": 0,
        "template": pod,
    }
    return thing("batch/v1", "Job", name, TRAINING, spec=spec)


def template_name(pool: str) -> str:
    """The PodTemplate of a pool."""
    return f"trainer-{pool}"


def _pod(pool: Pool, facts: Facts) -> Manifest:
    ports, tolerations = facts.environment.kubernetes.ports, _tolerations(pool)
    # The kernel picks the collectives' ports; so the network policy can name them.
    port_range = {"name": "net.ipv4.ip_local_port_range", "value": f"{ports.first} {ports.last}"}
    return {
        "serviceAccountName": TRAINER_ACCOUNT,
        "automountServiceAccountToken": False,
        "priorityClassName": PRIORITY,
        "restartPolicy": "Never",
        "subdomain": TRAINER_SERVICE,
        "terminationGracePeriodSeconds": NOTICE_S,
        "securityContext": {**pod_security(USER), "sysctls": [port_range]},
        "containers": [_container(pool, facts)],
        "volumes": [
            TMP,
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": SHARED_CLAIM}},
        ],
        **({"tolerations": tolerations} if tolerations else {}),
        **({"nodeSelector": {POOL_LABEL: pool.name}} if facts.on_azure else {}),
    }


def _container(pool: Pool, facts: Facts) -> Manifest:
    return {
        "name": "trainer",
        "image": facts.image("trainer"),
        "command": _command(max(1, facts.gpus(pool.name)), facts.environment.kubernetes.ports.rendezvous),
        "ports": [{"name": "rendezvous", "containerPort": facts.environment.kubernetes.ports.rendezvous}],
        "env": [
            _field("POD_IP", "status.podIP"),
            _field("JOB_NAME", "metadata.labels['batch.kubernetes.io/job-name']"),
            _field("NODE_RANK", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
            {"name": "NODES", "value": "1"},
            *_kept(),
        ],
        "resources": _resources(pool, facts),
        "securityContext": RESTRICTED,
        "volumeMounts": [
            TMP_MOUNT,
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - loaders' workers share memory there
            {"name": "shared", "mountPath": SHARED_PATH},
        ],
    }


def _command(workers: int, port: int) -> list[str]:
    """Torchrun with one worker for each accelerator of the pod; Kubernetes puts the variables of the pod in."""
    node = ["--nnodes=$(NODES)", "--node-rank=$(NODE_RANK)", f"--nproc-per-node={workers}"]
    meet = [f"--master-addr=$(JOB_NAME)-0.{TRAINER_SERVICE}", f"--master-port={port}"]
    return ["python", "-m", "torch.distributed.run", *node, *meet, "-m", "proving_ground.training", "run"]


def _kept() -> list[Manifest]:
    """Where a job leaves its work; Kubernetes fills in $(NAME), the trainer $NAME: `training.events`."""
    events = f"{JOBS_PATH}/events/$(JOB_NAME).n$(NODE_RANK).$LOCAL_RANK.jsonl"
    return [
        {"name": "PROVING_GROUND_EVENTS", "value": events},
        {"name": "PROVING_GROUND_CHECKPOINT_DIR", "value": f"{JOBS_PATH}/checkpoints/$(JOB_NAME)"},
    ]


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _resources(pool: Pool, facts: Facts) -> Manifest:
    """A whole machine to each pod where its size is known: two trainers on one would measure contention.

    Elsewhere so little that two trainers fit beside all else on two cores; nothing keeps them from using more.
    """
    sku = facts.sku(pool.name)
    if sku is None:
        return {"requests": {"cpu": "250m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    room = for_one_pod(sku)
    whole: Manifest = {"cpu": str(room.millicores // 1000), "memory": f"{room.memory_mib // 1024}Gi"}
    gpus: Manifest = {"nvidia.com/gpu": str(sku.gpus)} if sku.gpus else {}
    return {"requests": {**whole, **gpus}, "limits": {"memory": whole["memory"], **gpus}}


def _tolerations(pool: Pool) -> list[Manifest]:
    gpu = [{"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}] if pool.gpu else []
    spot = [{"key": SPOT_TAINT, "operator": "Equal", "value": "spot", "effect": "NoSchedule"}] if pool.spot else []
    return gpu + spot


def volume(facts: Facts) -> list[Manifest]:
    """The claim of the shared volume, with the volume itself where no class makes one."""
    wanted = facts.environment.kubernetes.volume
    size = {"storage": gib(wanted.size_gib)}
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": size}}
    if wanted.kind == "storage_class":
        named = {"storageClassName": wanted.storage_class} if wanted.storage_class else {}
        return [thing("v1", "PersistentVolumeClaim", SHARED_CLAIM, TRAINING, spec={**claim, **named})]
    name = f"pg-{facts.environment.name}-shared"
    spec = {
        "capacity": size,
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": TRAINING, "name": SHARED_CLAIM},
        **_source(wanted, facts),
    }
    fixed = {**claim, "storageClassName": "", "volumeName": name}
    secret = [_file_secret(facts)] if wanted.kind == "azure_file" else []
    made = thing("v1", "PersistentVolume", name, None, spec=spec)
    return [*secret, made, thing("v1", "PersistentVolumeClaim", SHARED_CLAIM, TRAINING, spec=fixed)]


def _source(wanted: Volume, facts: Facts) -> Manifest:
    if wanted.kind == "nfs":
        return {"nfs": {"server": wanted.server, "path": wanted.source}, "mountOptions": ["nfsvers=4.1", "hard"]}
    if wanted.kind == "azure_file":
        return {"csi": _azure_file(facts), "mountOptions": [f"uid={USER}", f"gid={USER}", "mfsymlinks", "nosharesock"]}
    return {"hostPath": {"path": wanted.source, "type": "DirectoryOrCreate"}}


def preparing(facts: Facts) -> Manifest:
    """What a pod on each node needs beside its own containers to give a host path to the trainers.

    The kubelet makes the folder as root's, and `fsGroup` does not reach host paths. So this is root, in the agents'
    namespace, with the right to give files away and no other. The image brings `chown` (Prometheus' are on BusyBox).
    """
    wanted = facts.environment.kubernetes.volume
    if wanted.kind != "host_path":
        return {}
    container = {
        "name": "shared-folder",
        "image": facts.image("node_exporter"),
        "command": ["chown", f"{USER}:{USER}", SHARED_PATH],
        "resources": sizes("50m", "32Mi"),
        "securityContext": {
            **RESTRICTED,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
            "runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0,
        },
        "volumeMounts": [{"name": "shared", "mountPath": SHARED_PATH}],
    }  # fmt: skip
    return {"initContainers": [container], "volumes": [{"name": "shared", **_source(wanted, facts)}]}


def _azure_file(facts: Facts) -> Manifest:
    return {
        "driver": "file.csi.azure.com",
        "volumeHandle": f"pg-{facts.environment.name}-shared",
        "volumeAttributes": {"shareName": "shared", "storageAccount": facts.file_account},
        "nodeStageSecretRef": {"name": FILE_SECRET, "namespace": TRAINING},
    }


def _file_secret(facts: Facts) -> Manifest:
    data = {"azurestorageaccountname": facts.file_account, "azurestorageaccountkey": facts.file_key}
    return thing("v1", "Secret", FILE_SECRET, TRAINING, type="Opaque", stringData=data)
