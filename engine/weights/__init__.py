"""Weight sources: safetensors, GGUF and random ones, each yielding named tensors."""
