# PYTHON_ARGCOMPLETE_OK
"""The command line of `infra`: `python -m infra --help`. What it can do is in `infra.commands`.

Exit status 0 fine, 1 not done, 2 the caller's mistake, 130 interrupted.
"""

import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Do one command; a Ctrl-C, a SIGTERM or the end of the terminal is one line, and ends what it has begun.

    While modules are imported it waits: in there, Python may print it and go on.
    """
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            from infra import commands  # noqa: PLC0415 - see above
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)
        return commands.run(argv)
    except KeyboardInterrupt:
        print("infra: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
