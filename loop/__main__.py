# PYTHON_ARGCOMPLETE_OK
"""`python -m loop …`: what can be typed stands in `loop.cli`."""

from bench.start import start

if __name__ == "__main__":
    start("loop")
