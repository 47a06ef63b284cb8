"""Builds models out of a spec and a source: as a folder, in memory, from a lock, and again after training."""
