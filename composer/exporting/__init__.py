"""A composed model as a folder that needs PyTorch and transformers alone, with its heads written out in one Python file."""
