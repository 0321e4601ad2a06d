"""Kernels written in Triton, one family a file. Nothing here imports at package import: see `register.py`."""
