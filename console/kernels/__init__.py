"""The kernels: what was selected, why, and what lost."""
