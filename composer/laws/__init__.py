"""The laws: what holds for every head, whatever its parts. This project's tests and the pytest plugin run them.

- ``cases``: a head for each part, and the inputs of a call.
- ``definition``, ``split``, ``batch``, ``bounds``, ``pieces``, ``precision``, ``weights``: a law each, as functions that raise
  AssertionError for a head that breaks it.
- ``kernels``, ``kernel_forms``: forms on kernels, in Triton's interpreter (``interpreter``).
- ``plugin``, ``suite``: ``pytest --composer-parts MODULE_OR_FILE``.
"""
