"""Load generation, workloads, percentiles and reports against any OpenAI-compatible server."""
