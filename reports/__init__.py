"""Sealed run directories in; results.json and report.html out. No cluster is needed here."""
