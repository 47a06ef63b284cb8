"""Runs of commands in folders: one process at a time, settings that a continued run shares, and what identifies its inputs."""
