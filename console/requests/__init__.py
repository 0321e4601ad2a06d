"""The requests: the table and the timeline of one request."""
