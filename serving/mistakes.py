"""The two kinds of error of this folder: raised everywhere in it, told by `serving.cli`. Neither tells a secret."""

from proving_ground.bench.redact import redacted


class ServingError(ValueError):
    """The caller's mistake: one line that says what, where, and what is allowed. Exit status 2."""

    def __init__(self, line: str) -> None:
        super().__init__(redacted(line))


class FailedError(RuntimeError):
    """What was asked makes sense and failed: answers differ, a server does not come up. Exit status 1."""

    def __init__(self, line: str) -> None:
        super().__init__(redacted(line))
