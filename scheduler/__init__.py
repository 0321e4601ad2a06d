"""The control plane: request states, admission, batching, retraction and the execution plan. No torch, no wall time."""
