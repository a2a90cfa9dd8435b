"""For all tests: Ctrl-C means what it means in a terminal, and properties are tried alike on machines that are busy.

What a shell starts in the background ignores SIGINT, and so does all that it starts, the programs under test included.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("busy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
