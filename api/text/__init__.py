"""Text: tokenizers, chat templates, incremental detokenization, stop strings. Knows nothing of HTTP or engines."""
