"""Names that cloud and cluster must agree on: labels, taints, namespaces, accounts. Imported by both sides."""

from __future__ import annotations

POOL_LABEL = "proving-ground/pool"
GPU_TAINT = "nvidia.com/gpu"
SPOT_TAINT = "kubernetes.azure.com/scalesetpriority"

TRAINING = "pg-training"
RAY = "pg-ray"
MONITORING = "pg-monitoring"
NODE_AGENTS = "pg-node-agents"
NAMESPACES = (TRAINING, RAY, MONITORING, NODE_AGENTS)

TRAINER_ACCOUNT = "trainer"
BENCH_ACCOUNT = "bench"
SHARED_CLAIM = "shared"
SHARED_PATH = "/shared"
JOBS_PATH = f"{SHARED_PATH}/jobs"  # where jobs leave events and checkpoints; what the exporter follows
TRAINER_SERVICE = "trainer"
