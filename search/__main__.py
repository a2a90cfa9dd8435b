# PYTHON_ARGCOMPLETE_OK
"""`python -m search …`: what can be typed stands in `search.cli`."""

from bench.start import start

if __name__ == "__main__":
    start("search")
