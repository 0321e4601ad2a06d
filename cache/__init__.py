"""KV memory: page pools, the prefix index, host and disk tiers. Knows nothing about requests or models."""
