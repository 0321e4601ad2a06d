"""Rope, KV writes and attention over the paged cache."""
