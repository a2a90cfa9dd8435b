# PYTHON_ARGCOMPLETE_OK
"""`pg bench …`: what can be typed stands in `bench.cli`."""

from proving_ground.bench.start import start

if __name__ == "__main__":
    start("bench")
