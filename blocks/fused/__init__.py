"""This project's own Triton kernels. The memories that use a kernel describe what it computes, and when it can run.

These files are imported only by functions that launch a kernel, so specs are lowered, and models run on a CPU, without Triton.
"""
