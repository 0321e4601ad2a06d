"""The events: retractions, evictions, aborts, refusals, errors."""
