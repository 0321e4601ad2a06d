"""The bookkeeping of a step on the device: page-table changes, the rows' inputs, and the feed of sampled tokens."""
