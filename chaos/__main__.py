# PYTHON_ARGCOMPLETE_OK
"""`python -m chaos …`: what can be typed stands in `chaos.cli`."""

from bench.start import start

if __name__ == "__main__":
    start("chaos")
