"""For all tests: Ctrl-C means what it means in a terminal.

What a shell starts in the background ignores SIGINT, and so does all that it starts, the programs under test included.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
