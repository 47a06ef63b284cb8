"""Errors of converters. The message states what is wrong, where, what was expected and what to do."""

from __future__ import annotations


class ConverterError(Exception):
    """Base of all of them; a mistake that the user can mend, never one of this code."""


class ConfigError(ConverterError):
    """``config.json`` is missing, unreadable, of an unknown family, or has a setting that no trunk supports."""


class WeightsError(ConverterError):
    """A weight file is missing, damaged or of a kind that is not read."""


class CoverageError(ConverterError):
    """The source's tensors and the model's do not match one to one."""


class HubError(ConverterError):
    """A model cannot be fetched from the Hub."""
