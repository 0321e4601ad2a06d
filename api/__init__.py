"""HTTP dialects, validation, templates, parsers, streaming and metrics. Knows nothing about GPUs or pages."""
