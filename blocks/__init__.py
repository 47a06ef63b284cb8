"""The parts that heads are composed of: tensors only. ``blocks.catalogue`` lists them, ``blocks.legend`` explains the letters."""
