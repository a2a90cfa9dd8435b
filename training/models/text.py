"""Language models: BERT fills gaps, GPT-2 says what comes next. Some of `training.models`.

The networks are transformers' classes, built from a configuration: no weights are fetched. The data set has one column
`token` (uint8, uint16 or int32), packed without padding; a sample is a window of it, and windows do not overlap. Its
manifest says how large the `vocabulary` is. `tiny` has windows of 64 tokens and two layers of width 64; `full` is the
published size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from proving_ground.training.data.mapped import DataError
from proving_ground.training.data.order import mix
from proving_ground.training.data.shards import opened
from proving_ground.training.models.task import Batch, Metric, make_optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from proving_ground.training.config import Config
    from proving_ground.training.data.order import Rows

TOKENS = ("uint8", "uint16", "int32")
MASKED = 0.15
"""The share of tokens that BERT has to fill in (Devlin et al., 2018)."""
IGNORED = -1
"""A target that is not asked for."""


class Text:
    """Windows of a packed text, the loss and the judgement; subclasses bring the network and what it has to say."""

    learns = True
    WINDOW: ClassVar[dict[str, int]]  # tokens of a sample, by size
    VOCABULARY: ClassVar[dict[str, int]]  # tokens that the network knows at least, by size
    AHEAD = 0  # tokens that a window's targets lie beyond it

    def __init__(self, config: Config) -> None:
        self.config, self.window = config, self.WINDOW[config.size]
        data = opened(config, "moby-dick")
        dtype = data.manifest["columns"].get("token", {}).get("dtype")
        data.expect(token=(dtype if dtype in TOKENS else " or ".join(TOKENS), ()))
        self._tokens = {split: data.column(split, "token") for split in ("train", "test")}
        self.rows, self.test_rows = ((len(it) - self.AHEAD) // self.window for it in self._tokens.values())
        if min(self.rows, self.test_rows) < 1:
            raise DataError(f"{data.path}: needs more than {self.window} tokens in each split")
        self._named, self.path = int(data.manifest.get("vocabulary", 0)), data.path
        if self._named < 1:
            raise DataError(f"{data.path}: the manifest does not say how many tokens there are: vocabulary")
        self.vocabulary = max(self.VOCABULARY[config.size], self._named + 1)  # one more: the gap

    def model(self) -> nn.Module:
        """The network."""
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """As configured."""
        return make_optimizer(self.config, model)

    def tokens(self, split: str, rows: Rows, length: int) -> Tensor:
        """Windows (n, length) of token numbers.

        Raises:
            DataError: a token beyond the vocabulary.
        """
        where = rows[:, None] * self.window + np.arange(length)
        found = self._tokens[split].rows(where.ravel()).reshape(where.shape).astype(np.int64)
        if found.size and not 0 <= found.min() <= found.max() < self._named:
            raise DataError(f"{self.path}: has token {found.max()}, and a vocabulary of {self._named}")
        return torch.from_numpy(found)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Each sample's mean cross entropy over the tokens that are asked for."""
        inputs, targets, _ = batch
        asked = (targets != IGNORED).sum(dim=1, keepdim=True)
        return (cross_entropy(model(inputs), targets) / asked).sum()

    def sums(self, model: nn.Module, batch: Batch) -> Tensor:
        """Right tokens, tokens that were asked for, and their cross entropy."""
        inputs, targets, _ = batch
        answers = model(inputs)
        right = (answers.argmax(dim=2) == targets).sum()
        return torch.stack([right, (targets != IGNORED).sum(), cross_entropy(answers, targets).double().sum()]).double()

    def metrics(self, sums: list[float]) -> list[Metric]:
        """Accuracy from 0 to 1, and the mean cross entropy in nats."""
        right, count, lost = sums
        return [Metric("accuracy", right / count), Metric("loss", lost / count)]


class Network(nn.Module):
    """A network of transformers' as a function from tokens (n, window) to logits (n, window, vocabulary)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.network(input_ids=tokens).logits
        return logits


class Gpt2(Text):
    """The next token, from those before it; full: GPT-2, 124 million parameters (Radford et al., 2019)."""

    WINDOW: ClassVar = {"tiny": 64, "full": 1024}
    VOCABULARY: ClassVar = {"tiny": 0, "full": 50_257}
    AHEAD = 1
    TINY: ClassVar = {"n_embd": 64, "n_layer": 2, "n_head": 4}

    def model(self) -> nn.Module:
        """The network."""
        drop, shape = self.config.dropout, self.TINY if self.config.size == "tiny" else {}
        config = GPT2Config(
            vocab_size=self.vocabulary, n_positions=self.window, resid_pdrop=drop, embd_pdrop=drop, attn_pdrop=drop,
            bos_token_id=None, eos_token_id=None, use_cache=False, attn_implementation=attention(self.config), **shape,
        )  # fmt: skip
        return Network(GPT2LMHeadModel(config))

    def batch(self, split: str, rows: Rows) -> Batch:
        """Tokens (n, window), and each one's follower."""
        tokens = self.tokens(split, rows, self.window + 1)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), rows)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The transformer's."""
        return list(model.network.transformer.h)  # type: ignore[union-attr, arg-type]


class Bert(Text):
    """Tokens that were taken out, from all around them; full: BERT-Large, 335 million (Devlin et al., 2018)."""

    WINDOW: ClassVar = {"tiny": 64, "full": 512}
    VOCABULARY: ClassVar = {"tiny": 0, "full": 30_522}
    TINY: ClassVar = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    LARGE: ClassVar = {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
    }  # fmt: skip

    def model(self) -> nn.Module:
        """The network."""
        drop, shape = self.config.dropout, self.TINY if self.config.size == "tiny" else self.LARGE
        config = BertConfig(
            vocab_size=self.vocabulary, max_position_embeddings=self.window, hidden_dropout_prob=drop,
            attention_probs_dropout_prob=drop, attn_implementation=attention(self.config), **shape,
        )  # fmt: skip
        return Network(BertForMaskedLM(config))

    def batch(self, split: str, rows: Rows) -> Batch:
        """Tokens (n, window) with gaps, and what was in the gaps; a row has the same gaps whenever it comes."""
        tokens = self.tokens(split, rows, self.window)
        taken = torch.from_numpy(gaps(rows, self.window))
        return Batch(tokens.masked_fill(taken, self._named), tokens.masked_fill(~taken, IGNORED), rows)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The encoder's."""
        return list(model.network.bert.encoder.layer)  # type: ignore[union-attr, arg-type]


def gaps(rows: Rows, window: int) -> NDArray[np.bool_]:
    """Which tokens (n, window) are taken out: `MASKED` of them by a hash of row and place, and one at least."""
    first = mix(rows.astype(np.uint64))
    places: NDArray[np.uint64] = mix(first[:, None] + np.arange(window, dtype=np.uint64)[None])
    taken: NDArray[np.bool_] = places < np.uint64(MASKED * 2**64)
    none = ~taken.any(axis=1)
    taken[none, first[none] % np.uint64(window)] = True
    return taken


def cross_entropy(answers: Tensor, targets: Tensor) -> Tensor:
    """Nats of each token (n, window); 0 where nothing is asked."""
    flat = nn.functional.cross_entropy(
        answers.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return flat.view(targets.shape)


def attention(config: Config) -> Any:  # noqa: ANN401 - transformers' own literal
    """Exact training needs operations that repeat themselves to the bit, which fused attention on a GPU does not."""
    return "eager" if config.reduction == "exact" else "sdpa"
