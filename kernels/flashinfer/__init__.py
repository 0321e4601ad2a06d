"""flashinfer, where it is installed: see `attention.py` and `plans.py`."""
