# PYTHON_ARGCOMPLETE_OK
"""`python -m monitoring …`: what can be typed stands in `monitoring.cli`."""

from bench.start import start

if __name__ == "__main__":
    start("monitoring")
