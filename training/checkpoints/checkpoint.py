"""Checkpoints that are whole or not there: what is in one, and how it is written, judged and read.

A checkpoint is parts and a `manifest.json` that has the SHA-256 of each, and of itself; where they lie is
`stores`' business. No part is unpickled before its hash was found right. Called by `saving`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from errno import EIO, ENOENT, ENOSPC, ENOTDIR
from pickle import UnpicklingError
from typing import IO, Any

import numpy as np
import torch
from torch.serialization import set_crc32_options

from proving_ground.training.checkpoints.stores import MANIFEST, Store, write_all
from proving_ground.training.state import tensors_of

FORMAT = 2
WRITE_CHUNK = 1 << 20  # bytes hashed right after they were written, while the processor's cache still has them
READ_CHUNK = 8 << 20  # bytes read while another thread hashes those before
SPARE = 1 << 20  # bytes asked for beside the tensors: pickles, manifest, folders
DAMAGE = {ENOENT, ENOTDIR, EIO}
"""What a read answers when a checkpoint is damaged. Anything else (no permission, a server that is gone) says nothing
about the checkpoint, and going on from an older one would hide that."""
NAME = re.compile(r"step-(\d{8,})(?:-g(\d{8,}))?")

State = dict[str, Any]
Reached = Callable[[str, int], None]


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used, in one line: which, and what is wrong with it."""


class DamagedError(CheckpointError):
    """A checkpoint that is not what was saved."""


class SupersededError(CheckpointError):
    """A newer incarnation of the job has taken over, so this one must not write."""


@dataclass(frozen=True)
class Saved:
    """A durable checkpoint: its name in the store, the bytes of its parts, its manifest's hash."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint: its address, what was in it, which incarnation of the job had written it."""

    path: str
    parts: dict[str, State]
    generation: int
    sha256: str


def random_state() -> State:
    """The state of every source of randomness of this process, in types that load without running code."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002 - the global one is meant
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), position, has_gauss, gauss),  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: State) -> None:
    """Put every source of randomness back; CUDA's only where there are as many devices as when it was saved."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002 - the global one is meant
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def name_of(step: int, generation: int) -> str:
    """What the checkpoint of a step is called, written by that incarnation of the job."""
    return f"step-{step:08d}-g{generation:08d}"


def age(name: str) -> tuple[int, int]:
    """What newer means: (generation, step). A later incarnation may have gone on from an earlier step."""
    match = NAME.fullmatch(name)
    return (int(match[2] or 0), int(match[1])) if match else (-1, -1)


def newest_first(store: Store) -> list[str]:
    """The checkpoints in a store, whether they are intact or not."""
    return sorted((name for name in store.names() if NAME.fullmatch(name)), key=age, reverse=True)


def newest_generation(store: Store) -> int:
    """The highest generation that was claimed or has written; 0 before the first."""
    return max([*store.claims(), *(age(name)[0] for name in newest_first(store))], default=0)


def claim_generation(store: Store) -> int:
    """Take the next generation for this incarnation of the job (rank 0); nobody else gets the same number.

    Where nothing can be written now (a full disk), the number is claimed by the first `save` that can.
    """
    generation = newest_generation(store) + 1
    try:
        while not store.claim(generation):
            generation += 1
    except OSError:
        return generation
    store.sweep(lambda name: age(name)[0] >= generation)
    return generation


def check_generation(store: Store, generation: int) -> None:
    """The fence: a writer may commit while nobody has claimed a newer generation.

    Raises:
        SupersededError: somebody has, or has claimed this very number.
    """
    newest = newest_generation(store)
    if newest <= generation and (store.claimed(generation) or store.claim(generation)):
        return
    raise SupersededError(f"{store.where()}: generation {max(newest, generation)} of the job has taken over")


def save(
    store: Store, step: int, generation: int, parts: dict[str, State], keep: int, reached: Reached = lambda *_: None
) -> Saved:
    """Write one checkpoint durably, then remove all but the newest `keep`.

    `reached` is told when a first part is written (`checkpoint_write`) and right before the commit (`before_rename`).

    Raises:
        OSError: the disk is full, read-only, gone …; what was there before is untouched.
        SupersededError: a newer incarnation of the job has taken over.
    """
    check_space(store, size_of(parts))
    name = name_of(step, generation)
    try:
        store.begin(name)
        files = write_parts(store, name, parts, lambda: reached("checkpoint_write", step))
        saved = commit(store, step, generation, files, reached)
    except BaseException:
        store.discard(name)
        raise
    prune(store, keep)
    return saved


def size_of(parts: dict[str, State]) -> int:
    """Bytes that a checkpoint of these parts takes, and some to spare."""
    return sum(tensor.nbytes for tensor in tensors_of(parts)) + SPARE


def write_parts(
    store: Store, name: str, parts: dict[str, State], first_written: Callable[[], None]
) -> dict[str, dict[str, Any]]:
    """Write parts of a draft, each durable before the next; their entries in the manifest."""
    files: dict[str, dict[str, Any]] = {}
    for part, state in parts.items():
        with store.create(name, f"{part}.pt") as file:
            files[f"{part}.pt"] = write_part(file, state)
            if len(files) == 1:
                first_written()
    return files


def commit(store: Store, step: int, generation: int, files: dict[str, dict[str, Any]], reached: Reached) -> Saved:
    """Make a draft whose parts are durable a checkpoint, unless a newer incarnation has taken over."""
    name = name_of(step, generation)

    def last_check() -> None:
        reached("before_rename", step)
        check_generation(store, generation)

    about = {"step": step, "generation": generation, "wall_s": time.time(), "torch": torch.__version__}
    manifest, sha256 = seal({"format": FORMAT, "name": name, **about, "files": files})
    store.commit(name, manifest, last_check)
    return Saved(name, sum(entry["bytes"] for entry in files.values()), sha256)


def check_space(store: Store, needed: int) -> None:
    """Refuse before a byte is written.

    Raises:
        OSError: less is free than will be needed.
    """
    free = store.free()
    if free is not None and free < needed:
        raise OSError(ENOSPC, f"needs {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free", store.where())


class Hashing:
    """A file to write to that hashes what passes: one pass over the data.

    In one thread: on a machine that also trains, hashing in a second one was no faster (A/B) and took a core more.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest, self.bytes = hashlib.sha256(), 0
        self.problem: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        """Write and hash everything."""
        view = memoryview(content).cast("B")
        for start in range(0, len(view), WRITE_CHUNK):
            try:
                write_all(self._file, view[start : start + WRITE_CHUNK])
            except OSError as error:
                self.problem = error
                raise
            self.digest.update(view[start : start + WRITE_CHUNK])
        self.bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is held back."""


def write_part(file: IO[bytes], state: State) -> dict[str, Any]:
    """Write one part; its entry in the manifest.

    Raises:
        OSError: what the file raised (torch.save turns it into a RuntimeError about positions).
    """
    hashing = Hashing(file)
    set_crc32_options(compute_crc32=False)  # SHA-256 says more, and without it 500 MB take a fifth less time
    try:
        torch.save(state, hashing)  # type: ignore[arg-type]  # all that it needs of a file
    except RuntimeError:
        if hashing.problem:
            raise hashing.problem from None
        raise
    return {"bytes": hashing.bytes, "sha256": hashing.digest.hexdigest()}


def seal(about: dict[str, Any]) -> tuple[bytes, str]:
    """A manifest with its own hash, and the hash."""
    sha256 = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return (json.dumps({"checkpoint": about, "sha256": sha256}, indent=1) + "\n").encode(), sha256


def unseal(content: bytes, name: str) -> tuple[dict[str, Any], str]:
    """What a manifest says, and its hash.

    Raises:
        DamagedError: it is no manifest, was changed, or is another checkpoint's.
        CheckpointError: of another format.
    """
    try:
        document = json.loads(content)
        if "checkpoint" not in document and isinstance(document["format"], int):  # formats before the second
            raise CheckpointError(f"{MANIFEST}: format {document['format']}; this version reads format {FORMAT}")
        about, sha256 = document["checkpoint"], document["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{MANIFEST} cannot be read: {type(error).__name__}: {error}") from None
    if seal(about)[1] != sha256:
        raise DamagedError(f"{MANIFEST}: its checksum differs")
    if about["format"] != FORMAT:
        raise CheckpointError(f"{MANIFEST}: format {about['format']}; this version reads format {FORMAT}")
    if about["name"] != name:
        raise DamagedError(f"{MANIFEST}: is of {about['name']}")
    return about, sha256


def prune(store: Store, keep: int) -> None:
    """Remove all but the newest `keep`; what cannot be removed stays."""
    for old in newest_first(store)[keep:]:
        try:
            store.remove(old)
        except OSError:
            continue


def load(store: Store, name: str) -> Loaded:
    """One checkpoint; every part is read and hashed before any is unpickled, and unpickling runs no code.

    Raises:
        DamagedError: something is missing or changed.
        CheckpointError: another format, or the store did not answer.
    """
    where = store.where(name)
    with refusing(where):
        about, sha256 = manifest_of(store, name)
        contents = {part: verified(store, name, part, entry) for part, entry in about["files"].items()}
    parts = {}
    for part in list(contents):  # one by one, so that each buffer goes as soon as its tensors are there
        parts[part.removesuffix(".pt")] = unpickled(contents.pop(part), where, part)
    return Loaded(where, parts, about["generation"], sha256)


def verify(store: Store, name: str) -> None:
    """Read and hash a whole checkpoint, one part at a time in memory.

    Raises:
        DamagedError: something is missing or changed.
        CheckpointError: another format, or the store did not answer.
    """
    with refusing(store.where(name)):
        about, _ = manifest_of(store, name)
        for part, entry in about["files"].items():
            verified(store, name, part, entry)


def manifest_of(store: Store, name: str) -> tuple[dict[str, Any], str]:
    """What a checkpoint's manifest says, and its hash."""
    return unseal(read(store, name, MANIFEST)[0].getvalue(), name)


def reason(error: OSError) -> str:
    """What the system says; an error without a number, as clients of object storage raise, says it in its text."""
    return error.strerror or str(error)


@contextlib.contextmanager
def refusing(where: str) -> Iterator[None]:
    """Tell which checkpoint it is that cannot be read."""
    try:
        yield
    except OSError as error:
        kind = DamagedError if error.errno in DAMAGE else CheckpointError
        raise kind(f"{where}: {error.filename or ''}: cannot be read: {reason(error)}") from None
    except CheckpointError as error:
        raise type(error)(f"{where}: {error}") from None


def unpickled(content: IO[bytes], where: str, part: str) -> State:
    """The state in a part that was verified.

    Raises:
        CheckpointError: of another torch, or what may not be unpickled.
    """
    try:
        return dict(torch.load(content, "cpu", weights_only=True))
    except (RuntimeError, UnpicklingError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{where}: {part} is intact, but torch cannot load it: {reason}") from None


def verified(store: Store, name: str, part: str, entry: dict[str, Any]) -> io.BytesIO:
    """A part's content, if it is what the manifest says."""
    content, sha256 = read(store, name, part)
    if sha256 != entry["sha256"]:
        size = content.getbuffer().nbytes
        raise DamagedError(f"{part}: {size} of {entry['bytes']} bytes, checksum differs from the manifest's")
    return content


def read(store: Store, name: str, part: str) -> tuple[io.BytesIO, str]:
    """A part's content and SHA-256; one thread hashes while the other reads."""
    content, digest = io.BytesIO(), hashlib.sha256()
    with store.open(name, part) as file, ThreadPoolExecutor(1) as pool:
        while chunk := file.read(READ_CHUNK):
            pool.submit(digest.update, chunk)
            content.write(chunk)
    content.seek(0)
    return content, digest.hexdigest()


def load_newest(store: Store, bad: Callable[[str, str], None]) -> Loaded | None:
    """The newest intact checkpoint, or None when there is none at all.

    Damaged ones that are newer are moved to the store's `quarantine`, and `bad` is told where they are now and why.
    Where they cannot be moved they are passed over. Older ones are not looked at.

    Raises:
        CheckpointError: there are checkpoints but not one is intact (starting again from nothing would hide the
            loss; nothing is moved); or the newest is of another format; or the store did not answer.
    """
    try:
        return newest_intact(
            newest_first(store), lambda name: load(store, name), lambda name, why: bad(set_aside(store, name), why)
        )
    except OSError as error:
        raise CheckpointError(f"{store.where()}: cannot be read: {reason(error)}") from None


def newest_intact(
    names: list[str], load_one: Callable[[str], Loaded], damaged_one: Callable[[str, str], None]
) -> Loaded | None:
    """As `load_newest`, with what loads one, and what is told of those that are damaged once an intact one is found."""
    damaged: list[tuple[str, str]] = []
    for name in names:
        try:
            found = load_one(name)
        except DamagedError as error:
            damaged.append((name, str(error)))
            continue
        for bad_name, why in damaged:
            damaged_one(bad_name, why)
        return found
    if not names:
        return None
    whys = "; ".join(why for _, why in damaged[:3])
    raise CheckpointError(f"none of {len(names)} checkpoints is intact ({whys}); resume = false starts again")


def set_aside(store: Store, name: str) -> str:
    """Move a bad checkpoint out of the way; where it is now."""
    try:
        return store.set_aside(name)
    except OSError:
        return store.where(name)
