"""Kernels of this project's own, in Triton. What each computes, and where it fits, stands in the room of the memories it joins.

Only functions that launch one import these files: a spec is lowered, and a model runs on a CPU, without Triton.
"""
