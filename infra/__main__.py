# PYTHON_ARGCOMPLETE_OK
"""The command line of `infra`: `pg infra --help`. What it can do is in `infra.commands`.

Exit status 0 fine, 1 not done, 2 the caller's mistake, 130 interrupted.
"""

import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Do one command; a Ctrl-C, a SIGTERM or the end of the terminal is one line, and ends what it has begun."""
    try:
        from proving_ground.infra.interrupts import held  # noqa: PLC0415 - a Ctrl-C in here is one line, too

        with held():
            from proving_ground.infra import commands  # noqa: PLC0415 - the same
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)
        return commands.run(argv)
    except KeyboardInterrupt:
        print("infra: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
