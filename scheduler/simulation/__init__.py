"""The control plane in a made-up world: `tsd simulate`."""
