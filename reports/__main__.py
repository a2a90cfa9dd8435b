# PYTHON_ARGCOMPLETE_OK
"""`python -m reports …`: what can be typed stands in `reports.cli`."""

from bench.start import start

if __name__ == "__main__":
    start("reports")
