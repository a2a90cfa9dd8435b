"""A small GPT that learns to write this file; the kind of script that people have, and it knows nothing of us.

Run in its own folder: `python train.py max_iters=100 out_dir=out`, by itself or under torchrun. Rank 0 alone prints,
evaluates and saves, while the others wait; what `out_dir` holds is gone on from.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

NUMBERS: dict[str, float] = {
    "max_iters": 200, "eval_interval": 50, "eval_iters": 5, "batch_size": 8, "block_size": 32, "threads": 1,
    "gradient_accumulation_steps": 1, "n_layer": 2, "n_head": 2, "n_embd": 32, "learning_rate": 1e-3,
}  # fmt: skip


class Block(nn.Module):
    """Attention to what came before, then a small network; both added to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        added: Tensor = x + self.mlp(self.norms[1](x))
        return added


class GPT(nn.Module):
    """Characters in, scores of the next one out."""

    def __init__(self, characters: int, config: Mapping[str, float]) -> None:
        super().__init__()
        width = int(config["n_embd"])
        self.tokens, self.places = nn.Embedding(characters, width), nn.Embedding(int(config["block_size"]), width)
        self.blocks = nn.Sequential(*(Block(width, int(config["n_head"])) for _ in range(int(config["n_layer"]))))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, characters))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch; both are (batch, time) of character numbers."""
        scores = self.head(self.blocks(self.tokens(x) + self.places.weight[: x.shape[1]]))
        return functional.cross_entropy(scores.flatten(0, 1), y.flatten())


def batch_of(data: Tensor, config: Mapping[str, float]) -> tuple[Tensor, Tensor]:
    """Pieces from anywhere in the text, and the same one character on."""
    size, length = int(config["batch_size"]), int(config["block_size"])
    at = torch.randint(len(data) - length - 1, (size,))
    pieces = torch.stack([data[it : it + length + 1] for it in at.tolist()])
    return pieces[:, :-1], pieces[:, 1:]


@torch.no_grad()
def evaluated(model: nn.Module, data: Tensor, config: Mapping[str, float]) -> float:
    """The mean loss of some batches."""
    model.eval()
    losses = [float(model(*batch_of(data, config))) for _ in range(int(config["eval_iters"]))]
    model.train()
    return sum(losses) / len(losses)


def save(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, done: int) -> None:
    """Replace the checkpoint, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": done}
    torch.save(state, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


def resume(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint, if there is one; how many steps it has made."""
    if not file.exists():
        return 0
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["iter_num"])


def train(config: Mapping[str, float], file: Path, rank: int, world: int) -> None:
    """Train to `max_iters`."""
    text = Path("train.py").read_text()
    letters = sorted(set(text))
    data = torch.tensor([letters.index(it) for it in text])
    torch.manual_seed(1337)
    raw = GPT(len(letters), config)
    optimizer = torch.optim.AdamW(raw.parameters(), lr=config["learning_rate"])
    done = resume(file, raw, optimizer)
    torch.manual_seed(1337 + rank + done)
    model: nn.Module = DistributedDataParallel(raw) if world > 1 else raw
    pieces, begin = max(1, int(config["gradient_accumulation_steps"]) // world), time.time()
    while done < config["max_iters"]:
        if done % int(config["eval_interval"]) == 0 and rank == 0:
            print(f"step {done}: val loss {evaluated(raw, data, config):.4f}", flush=True)
            save(file, raw, optimizer, done)
        for _ in range(pieces):
            loss = model(*batch_of(data, config)) / pieces
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done += 1
        if rank == 0:
            took_s, begin = time.time() - begin, time.time()
            print(f"iter {done}: loss {loss.item() * pieces:.4f}, time {took_s * 1000:.2f}ms", flush=True)


def main() -> None:
    """Read `key=value` words, meet the other ranks if there are any, train, leave."""
    asked = dict(word.split("=", 1) for word in sys.argv[1:])
    config = {key: float(asked.get(key, usual)) for key, usual in NUMBERS.items()}
    torch.set_num_threads(int(config["threads"]))
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if not alone:
        dist.init_process_group("gloo")
    rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    train(config, Path(asked.get("out_dir", "out")) / "ckpt.pt", rank, world)
    if not alone:
        dist.destroy_process_group()
        os._exit(0)  # a thread of Gloo's may still hold a gradient, and would abort Python's own end


if __name__ == "__main__":
    main()
