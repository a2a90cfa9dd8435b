# PYTHON_ARGCOMPLETE_OK
"""`python -m bench …`: what can be typed stands in `bench.cli`."""

from bench.start import start

if __name__ == "__main__":
    start("bench")
