"""Tells Proving Ground what a trainer does: copy this one file beside yours. It needs nothing but Python.

    job = pg_events.Job()
    job.ready(rows=len(data))
    for step in range(1, steps + 1):
        …
        job.step(step, samples=len(batch), loss=loss.item(), rows=ids)
        if step % 10 == 0:
            job.fingerprint(step, model, optimizer)

Outside of Proving Ground it does nothing. `rows` are the sample ids that this process learned from in the step: with
them the report proves that each sample was learned once. With fingerprints it proves that a job with faults became what
an undisturbed one becomes. With neither it says how fast the job came back, and that the rest cannot be told.

Or have the optimizer tell after each of its steps, PyTorch's own or accelerate's:

    job.resumed(step, path)  # after a checkpoint was loaded
    job.watch(model, optimizer, samples=32, fingerprint_every=10)
    job.ready(rows=len(data))
    for ids, batch in loader:
        job.learned(ids)

Lightning: `Trainer(callbacks=[pg_events.lightning_callback(batch_size=32)])`. Hugging Face's Trainer:
`Trainer(callbacks=[pg_events.transformers_callback()])`.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import string
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

VARIABLE = "PROVING_GROUND_EVENTS"
"""Environment variable with the path of the file to append to; it may name other variables."""
SETTLE_S = 2.0
SKETCH, BLOCK = 4, 2**16  # projections of the parameters, made so many at a time


def ends_in_half_a_line(path: Path) -> bool:
    """Whether a killed process left one; a pipe or a device has none."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class Job:
    """One process of the job. Each call appends one line, or does nothing where nobody listens."""

    def __init__(self) -> None:
        path = string.Template(os.environ.get(VARIABLE, "")).safe_substitute(os.environ)
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path else None
        if self._file is not None:
            if ends_in_half_a_line(Path(path)):
                os.write(self._file, b"\n")
            atexit.register(settle)
        self.rank = int(os.environ.get("RANK", "0"))
        self.made = 0  # the newest step
        self._rows: list[int] | None = None  # that it learned from since then

    @property
    def listens(self) -> bool:
        """Whether anybody reads what is told."""
        return self._file is not None

    def tell(self, event: str, **fields: object) -> None:
        """Append an event; fields that are None are left out. Times are of the monotonic clock, in seconds."""
        if self._file is None:
            return
        known = {name: value for name, value in fields.items() if value is not None}
        line = json.dumps({"t": time.monotonic(), "event": event, **known}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def ready(self, rows: int | None = None) -> None:
        """The next thing is a step; `rows`: samples in the training data."""
        self.tell("ready", rows=rows)

    def step(
        self, step: int, samples: int, *, loss: float | None = None, lr: float | None = None,
        rows: Iterable[int] | None = None,
    ) -> None:  # fmt: skip
        """An optimizer step is done (the first is 1), and this process learned from so many samples in it."""
        if rows is not None:
            self.learned(rows)
        self.tell("step", step=step, samples=samples, loss=loss, lr=lr, rows=self._rows)
        self.made, self._rows = step, None

    def learned(self, rows: Iterable[int]) -> None:
        """Sample ids of a batch that this process learns from; told with its next step."""
        if self._file is not None:
            self._rows = [*(self._rows or ()), *map(int, rows)]

    def watch(self, model: Any, optimizer: Any, samples: int, fingerprint_every: int = 0) -> None:  # noqa: ANN401 - torch is not imported here
        """Tell of every step that this one optimizer makes from now on, from `resumed` on or from 1.

        `samples` are those of this process in a step. Give accelerate's own optimizer, or the one that it wraps. A step
        that a gradient scaler leaves out is none.
        """
        own = getattr(optimizer, "optimizer", optimizer)

        def made(*_: object) -> None:
            self.step(self.made + 1, samples, lr=own.param_groups[0]["lr"])
            self.fingerprint_each(fingerprint_every, getattr(model, "module", model), own)

        if self.listens:
            own.register_step_post_hook(made)

    def checkpoint(
        self, step: int, path: str | Path, size: int, seconds: float, durable_s: float | None = None
    ) -> None:  # fmt: skip
        """The state after a step is saved, whole: bytes, and the seconds for which training stood still.

        `durable_s`: the seconds that it took, where training went on meanwhile.
        """
        self.tell("checkpoint", step=step, path=str(path), bytes=size, block_s=seconds, durable_s=durable_s)

    def resumed(self, step: int, path: str | Path) -> None:
        """The job goes on after a step, from a checkpoint."""
        self.made = step
        self.tell("resume", step=step, path=str(path), rank=self.rank)

    def fingerprint(self, step: int, model: Any, optimizer: Any, more: object = None) -> None:  # noqa: ANN401 - torch is not imported here
        """What the training is after a step: hashes of parameters, buffers, optimizer and torch's random state.

        And a sketch of the parameters: by how much two of them differ, where their bits do.

        Buffers, such as BatchNorm's statistics, may differ between ranks; all else has to be the same on all of them.
        `more`: what else a checkpoint brings back, such as `random.getstate()`. A state that starts differently in each
        process and is not saved would never be the same.
        """
        if self._file is None:
            return
        random = [sys.modules["torch"].get_rng_state(), more]
        buffers, learned = buffers_and_rest(model)
        parts = {"parameters": learned, "optimizer": optimizer.state_dict(), "random": random}
        parts |= {"buffers": buffers} if buffers else {}
        hashes = {f"{name}_sha256": sha256(part) for name, part in parts.items()}
        self.tell("fingerprint", step=step, lr=optimizer.param_groups[0]["lr"], sketch=sketch(learned), **hashes)

    def fingerprint_each(self, every: int, model: Any, optimizer: Any) -> None:  # noqa: ANN401 - the same
        """The fingerprint of the newest step, if it is one of every so many; 0: never."""
        if every and self.made % every == 0:
            self.fingerprint(self.made, model, optimizer)

    def end(self, step: int) -> None:
        """Training is over."""
        self.tell("end", step=step)


def settle(within_s: float = SETTLE_S) -> None:
    """Wait until no other thread of this process computes, as one of Gloo's may still after the last step.

    One that lets go of a tensor while the interpreter shuts down aborts a process that has done all of its work
    (pytorch issue 190489).
    """
    deadline, own = time.monotonic() + within_s, str(threading.get_native_id())
    while time.monotonic() < deadline:
        time.sleep(0.01)  # whoever waits for the interpreter has it meanwhile
        others = [it for it in Path("/proc/self/task").glob("*/stat") if it.parent.name != own]
        if not any(computes(it) for it in others):
            return


def computes(stat: Path) -> bool:
    """Whether a thread runs, or would if a core were free."""
    with contextlib.suppress(OSError):  # it has ended
        return stat.read_text().rpartition(")")[2].split()[0] == "R"
    return False


def buffers_and_rest(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:  # noqa: ANN401 - torch is not imported here
    """What a model's state dict has, in two; what a wrapper has renamed is in the rest."""
    rest = model.state_dict().copy()
    own = [name for name, _ in model.named_buffers(remove_duplicate=False) if name in rest]
    return {name: rest.pop(name) for name in own}, rest


def sketch(learned: dict[str, Any]) -> list[float] | None:
    """`SKETCH` projections of all parameters on seeded random signs; distances are kept on average.

    It only says by how much two states differ. So where it cannot be made there is none, and training goes on.
    """
    torch = sys.modules["torch"]
    generator = torch.Generator("cpu").manual_seed(SKETCH)

    def signs(*shape: int) -> Any:  # noqa: ANN401 - torch is not imported here
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.int8, device="cpu").double() * 2 - 1

    try:
        table, sums = signs(BLOCK, SKETCH), torch.zeros(SKETCH, dtype=torch.float64, device="cpu")
        for tensor in learned.values():
            if hasattr(tensor, "detach") and tensor.is_floating_point():
                for block in tensor.detach().cpu().flatten().split(BLOCK):
                    sums += signs(1) * (block.double() @ table[: len(block)])
        return [float(it) for it in sums]
    except Exception:  # noqa: BLE001 - what is told beside the hashes must never end a training
        return None


def sha256(state: object) -> str:
    """The hash of nested dicts, lists and tensors; equal if and only if all of it is, to the last bit."""
    digest = hashlib.sha256()

    def feed(value: Any) -> None:  # noqa: ANN401 - anything
        if hasattr(value, "detach"):
            digest.update(f"tensor {value.dtype} {tuple(value.shape)}".encode())
            raw = value.detach().cpu().contiguous().flatten()
            digest.update(raw.view(sys.modules["torch"].uint8).numpy().tobytes())
        elif isinstance(value, dict | list | tuple):
            digest.update(f"{type(value).__name__} {len(value)}".encode())
            for item in value.items() if isinstance(value, dict) else value:
                feed(item)
        else:
            digest.update(repr(value).encode())

    feed(state)
    return digest.hexdigest()


def lightning_callback(
    batch_size: int, fingerprint_every: int = 0, rows: Callable[[Any], Iterable[int]] | None = None
) -> Any:  # noqa: ANN401 - a class made here
    """A callback of Lightning's, which is imported by this call.

    `batch_size` is that of one process and step; `rows` gives the sample ids of a batch: `lambda batch: batch[0]`.
    """
    from lightning.pytorch import Callback  # noqa: PLC0415 - an option of who uses it

    return type("Tell", (OfLightning, Callback), {})(batch_size, fingerprint_every, rows)


class OfLightning:
    """Tells of each optimizer step, and of what is saved and loaded. Signatures are Lightning's."""

    def __init__(
        self, batch_size: int, fingerprint_every: int, rows: Callable[[Any], Iterable[int]] | None
    ) -> None:  # fmt: skip
        self.job, self.saves = Job(), False
        self.batch_size, self.fingerprint_every, self.rows = batch_size, fingerprint_every, rows

    def setup(self, trainer: Any, _module: object, stage: str) -> None:  # noqa: ANN401 - Lightning's
        """Have every checkpoint that is saved told."""
        save = trainer.save_checkpoint
        if stage != "fit" or self.saves or not self.job.listens:
            return

        def saved(path: Any, *words: Any, **more: Any) -> None:  # noqa: ANN401 - Lightning's
            begin, step = time.monotonic(), trainer.global_step
            save(path, *words, **more)
            if trainer.is_global_zero:
                self.tell_of_saved(trainer.strategy.checkpoint_io, step, path, begin)

        trainer.save_checkpoint, self.saves = saved, True

    def tell_of_saved(self, plugin: object, step: int, path: str, begin: float) -> None:
        """Tell of a checkpoint once it lies there: `AsyncCheckpointIO` writes it in a thread of its own, in turn."""
        block_s, writer = time.monotonic() - begin, getattr(plugin, "_executor", None)
        if writer is None:
            self.job.checkpoint(step, path, size_of(path), block_s)
            return

        def written() -> None:
            if getattr(plugin, "_error", None) is None:
                self.job.checkpoint(step, path, size_of(path), block_s, time.monotonic() - begin)

        writer.submit(written)

    def on_load_checkpoint(self, trainer: Any, _module: object, checkpoint: dict[str, Any]) -> None:  # noqa: ANN401 - Lightning's
        """It goes on from this one, unless it is only evaluated."""
        if trainer.state.fn == "fit":
            self.job.resumed(checkpoint["global_step"], trainer.ckpt_path)

    def on_train_start(self, trainer: Any, _module: object) -> None:  # noqa: ANN401 - Lightning's
        """The next thing is a step."""
        self.job.made = trainer.global_step
        self.job.ready(rows=length(trainer.train_dataloader) if self.rows else None)

    def on_train_batch_start(self, _trainer: object, _module: object, batch: object, *_: object) -> None:
        """These samples are learned from."""
        if self.rows and self.job.listens:
            self.job.learned(self.rows(batch))

    def on_train_batch_end(self, trainer: Any, module: object, *_: object) -> None:  # noqa: ANN401 - Lightning's
        """Perhaps a step is done."""
        if trainer.global_step > self.job.made:  # with accumulation, not every batch is a step
            self.job.step(trainer.global_step, self.batch_size * trainer.accumulate_grad_batches)
            self.job.fingerprint_each(self.fingerprint_every, module, trainer.optimizers[0])

    def on_train_end(self, trainer: Any, _module: object) -> None:  # noqa: ANN401 - Lightning's
        """Training is over."""
        self.job.end(trainer.global_step)


def transformers_callback(fingerprint_every: int = 0, rows: str = "") -> Any:  # noqa: ANN401 - a class made here
    """A callback of Hugging Face's Trainer, which is imported by this call.

    `rows` names the column with the sample ids. It is taken out before the model sees a batch, from the begin of the
    training on, and needs `TrainingArguments(remove_unused_columns=False)`.
    """
    from transformers import TrainerCallback  # noqa: PLC0415 - an option of who uses it

    return type("Tell", (OfTransformers, TrainerCallback), {})(fingerprint_every, rows)


class OfTransformers:
    """Tells of each optimizer step, and of what is saved and loaded. Signatures are those of Hugging Face's Trainer."""

    def __init__(self, fingerprint_every: int, rows: str) -> None:
        self.job, self.since, self.hook = Job(), 0.0, None
        self.fingerprint_every, self.rows = fingerprint_every, rows

    def on_train_begin(self, args: Any, state: Any, _control: object, **more: Any) -> None:  # noqa: ANN401 - theirs
        """The next thing is a step; perhaps others came before."""
        path = checkpoint_of(args, state)
        if state.global_step and path.exists():
            self.job.resumed(state.global_step, path)
        if self.rows and self.hook is None:
            self.hook = more["model"].register_forward_pre_hook(self.taken, with_kwargs=True)
        self.job.ready(rows=length(more["train_dataloader"]) if self.rows else None)

    def taken(self, model: Any, words: object, batch: dict[str, Any]) -> tuple[object, dict[str, Any]]:  # noqa: ANN401 - torch's
        """Take the sample ids out of what a model is called with, if it has any."""
        ids = batch.pop(self.rows, None)
        if ids is not None and model.training:
            self.job.learned(ids)
        return words, batch

    def on_step_end(self, args: Any, state: Any, _control: object, **more: Any) -> None:  # noqa: ANN401 - theirs
        """A step is done."""
        self.job.step(state.global_step, args.per_device_train_batch_size * args.gradient_accumulation_steps)
        self.job.fingerprint_each(self.fingerprint_every, more["model"], more["optimizer"])
        self.since = time.monotonic()

    def on_evaluate(self, *_: object, **__: object) -> None:
        """What comes now is no evaluation."""
        self.since = time.monotonic()

    def on_save(self, args: Any, state: Any, *_: object, **__: object) -> None:  # noqa: ANN401 - theirs
        """A checkpoint is whole, once every process has written its part."""
        distributed = sys.modules["torch"].distributed
        if self.job.listens and distributed.is_initialized():
            distributed.barrier()
        if self.job.listens and state.is_world_process_zero:
            path = checkpoint_of(args, state)
            self.job.checkpoint(state.global_step, path, size_of(path), time.monotonic() - self.since)

    def on_train_end(self, _args: object, state: Any, *_: object, **__: object) -> None:  # noqa: ANN401 - theirs
        """Training is over."""
        self.job.end(state.global_step)


def checkpoint_of(args: Any, state: Any) -> Path:  # noqa: ANN401 - theirs
    """Where Hugging Face's Trainer keeps the checkpoint of the step that it has made."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def length(loader: Any) -> int | None:  # noqa: ANN401 - anybody's
    """Samples of a loader's data; None where they are not counted."""
    data: Any = getattr(loader, "dataset", None)
    return len(data) if hasattr(data, "__len__") else None


def size_of(path: str | Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    found = Path(path)
    return sum(it.stat().st_size for it in ([found] if found.is_file() else found.rglob("*")) if it.is_file())
