"""Builds models out of a spec and a source: as a folder, in memory, and again after training."""
