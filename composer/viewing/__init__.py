"""The live page: a spec on the left, and what becomes of it on the right."""
