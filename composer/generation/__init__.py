"""Models that generate text, and files with their states after a text, for several commands."""
