"""The two kinds of error of this folder: raised everywhere in it, told by `serving.cli`."""


class ServingError(ValueError):
    """The caller's mistake: one line that says what, where, and what is allowed. Exit status 2."""


class FailedError(RuntimeError):
    """What was asked makes sense and failed: answers differ, a server does not come up. Exit status 1."""
