"""Ablations: every variant of a sweep is built, trained and scored, and what variants share is done once."""
