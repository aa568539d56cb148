"""Measurements of speed on this machine. Measures only: nothing is tuned or decided here."""
