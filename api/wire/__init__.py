"""Wire types: one module per dialect. Unknown fields are tolerated, null is unset, types are checked."""
