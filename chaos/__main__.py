# PYTHON_ARGCOMPLETE_OK
"""`pg chaos …`: what can be typed stands in `chaos.cli`."""

from proving_ground.bench.start import start

if __name__ == "__main__":
    start("chaos")
