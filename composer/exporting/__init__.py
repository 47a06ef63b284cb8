"""A composed model as a folder that needs PyTorch and transformers alone, with its heads written out in one Python file."""

EXPORT = "export.json"
"""The record of an export, beside its weights."""
