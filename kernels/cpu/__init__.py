"""Kernels for x86-64 processors, in C: packed weights, fused normalisation, rotary embedding and attention."""
