"""What can be trained: one table, read by `training.config` before torch is there and by `task`.

A model of this project's is a row here; one of the user's own is `package.module:Task`, a class as `task.Task` says.
"""

from __future__ import annotations

from dataclasses import dataclass

OWN = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
"""How a model of the user's own is named: a module on the path, and the class in it."""


@dataclass(frozen=True)
class Known:
    """One model: where its task is, and what configurations it may have."""

    task: str
    sized: bool = False  # has a tiny and a full size
    batch_norm: bool = False  # has normalisation layers that may use the batch's statistics
    blocks: bool = False  # has blocks whose activations can be computed again


MODELS: dict[str, Known] = {
    "digits": Known("proving_ground.training.models.digits:Digits", batch_norm=True),
    "stocks": Known("proving_ground.training.models.stocks:Stocks"),
    "resnet50": Known("proving_ground.training.models.networks:ResNet50", sized=True, batch_norm=True, blocks=True),
    "resnet152": Known("proving_ground.training.models.networks:ResNet152", sized=True, batch_norm=True, blocks=True),
    "vit": Known("proving_ground.training.models.networks:ViT", sized=True, blocks=True),
    "bert": Known("proving_ground.training.models.text:Bert", sized=True, blocks=True),
    "gpt2": Known("proving_ground.training.models.text:Gpt2", sized=True, blocks=True),
    "paced": Known("proving_ground.training.models.paced:Paced"),
}
