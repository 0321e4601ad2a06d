"""FlashAttention-3, where its wheel is installed: see `attention.py`."""
