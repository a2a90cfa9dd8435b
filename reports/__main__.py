# PYTHON_ARGCOMPLETE_OK
"""`pg reports …`: what can be typed stands in `reports.cli`."""

from proving_ground.bench.start import start

if __name__ == "__main__":
    start("reports")
