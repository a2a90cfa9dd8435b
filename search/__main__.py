# PYTHON_ARGCOMPLETE_OK
"""`pg search …`: what can be typed stands in `search.cli`."""

from proving_ground.bench.start import start

if __name__ == "__main__":
    start("search")
