"""GPT-2's shape with ten billion parameters, to be planned: a task that a user could write."""

from __future__ import annotations

from typing import ClassVar

from proving_ground.training.models.text import Gpt2


class TenBillion(Gpt2):
    """32 layers of width 5,120."""

    WINDOW: ClassVar = {"tiny": 1024}
    VOCABULARY: ClassVar = {"tiny": 50_257}
    TINY: ClassVar = {"n_embd": 5120, "n_layer": 32, "n_head": 40}
