"""The overview: latency, load, engines, GPUs, and why TTFT is up."""
