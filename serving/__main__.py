# PYTHON_ARGCOMPLETE_OK
"""`python -m serving …`: what can be typed stands in `serving.cli`."""

from bench.start import start

if __name__ == "__main__":
    start("serving")
