"""Process life, the step loop, executors, models and weights. Knows nothing about HTTP or JSON."""
