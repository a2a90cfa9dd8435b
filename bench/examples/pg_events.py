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
an undisturbed one becomes. Without both it says how fast the job came back, and that the rest cannot be told.

Lightning: `Trainer(callbacks=[pg_events.lightning_callback(batch_size=32)])`. Hugging Face's Trainer:
`Trainer(callbacks=[pg_events.transformers_callback()])`. With accelerate, call `job.step` in the loop.
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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VARIABLE = "PROVING_GROUND_EVENTS"
"""Environment variable with the path of the file to append to; it may name other variables."""
SETTLE_S = 2.0


class Job:
    """One process of the job. Each call appends one line, or does nothing where nobody listens."""

    def __init__(self) -> None:
        path = string.Template(os.environ.get(VARIABLE, "")).safe_substitute(os.environ)
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path else None
        if path:
            atexit.register(settle)
        self.rank = int(os.environ.get("RANK", "0"))

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
        self.tell(
            "step", step=step, samples=samples, loss=loss, lr=lr, rows=None if rows is None else list(map(int, rows))
        )

    def checkpoint(self, step: int, path: str, size: int, seconds: float) -> None:
        """The state after a step is saved: bytes, and the seconds for which training stood still."""
        self.tell("checkpoint", step=step, path=str(path), bytes=size, block_s=seconds)

    def resumed(self, step: int, path: str) -> None:
        """The job goes on after a step, from a checkpoint."""
        self.tell("resume", step=step, path=str(path), rank=self.rank)

    def fingerprint(self, step: int, model: Any, optimizer: Any, more: object = None) -> None:  # noqa: ANN401 - torch is not imported here
        """What the training is after a step: hashes of parameters, optimizer and torch's random state.

        `more`: what else a checkpoint brings back, such as `random.getstate()`. A state that starts differently in each
        process and is not saved would never be the same.
        """
        if self._file is None:
            return
        random = [sys.modules["torch"].get_rng_state(), more]
        parts = {"parameters": model.state_dict(), "optimizer": optimizer.state_dict(), "random": random}
        hashes = {f"{name}_sha256": sha256(part) for name, part in parts.items()}
        self.tell("fingerprint", step=step, lr=optimizer.param_groups[0]["lr"], **hashes)

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


def lightning_callback(batch_size: int, fingerprint_every: int = 0) -> Any:  # noqa: ANN401 - a class made here
    """A Lightning callback; `batch_size` is that of one process and step. Lightning is imported by this call."""
    from lightning.pytorch import Callback  # noqa: PLC0415 - an option of who uses it

    class Tell(Callback):  # type: ignore[misc]  # its types are not checked
        """Tells of each optimizer step."""

        def __init__(self) -> None:
            self.job, self.last = Job(), 0

        def on_train_start(self, trainer: Any, module: Any) -> None:  # noqa: ANN401, ARG002 - Lightning's signature
            self.last = trainer.global_step
            self.job.ready()

        def on_train_batch_end(self, trainer: Any, module: Any, *_: object) -> None:  # noqa: ANN401 - the same
            if trainer.global_step > self.last:  # with accumulation, not every batch is a step
                self.last = trainer.global_step
                self.job.step(self.last, batch_size * trainer.accumulate_grad_batches)
                if fingerprint_every and self.last % fingerprint_every == 0:
                    self.job.fingerprint(self.last, module, trainer.optimizers[0])

        def on_train_end(self, trainer: Any, module: Any) -> None:  # noqa: ANN401, ARG002 - the same
            self.job.end(trainer.global_step)

    return Tell()


def transformers_callback(fingerprint_every: int = 0) -> Any:  # noqa: ANN401 - a class made here
    """A callback of Hugging Face's Trainer, which is imported by this call."""
    from transformers import TrainerCallback  # noqa: PLC0415 - an option of who uses it

    class Tell(TrainerCallback):  # type: ignore[misc]  # its types are not checked
        """Tells of each optimizer step."""

        def __init__(self) -> None:
            self.job = Job()

        def on_train_begin(self, *_: object, **__: object) -> None:
            self.job.ready()

        def on_step_end(self, args: Any, state: Any, _control: object, **more: Any) -> None:  # noqa: ANN401 - theirs
            self.job.step(state.global_step, args.per_device_train_batch_size * args.gradient_accumulation_steps)
            if fingerprint_every and state.global_step % fingerprint_every == 0:
                self.job.fingerprint(state.global_step, more["model"], more["optimizer"])

        def on_train_end(self, _args: object, state: Any, *_: object, **__: object) -> None:  # noqa: ANN401 - theirs
            self.job.end(state.global_step)

    return Tell()
