"""Weight names: from each family's checkpoints to one set of canonical names, Llama's. No tensors are read, only headers.

A family is a table of names and a reading of its config (``llama.py``, ``composed.py``); ``families.FAMILIES`` lists them.
``source.open_source`` reads a folder, ``hub.fetch`` downloads one.
"""
