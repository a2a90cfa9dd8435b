"""The one kind of error that is the caller's: raised everywhere in `monitoring`, told by `monitoring.cli`."""


class MonitoringError(ValueError):
    """The caller's mistake: one line that says what, where, and what is allowed. Exit status 2."""
