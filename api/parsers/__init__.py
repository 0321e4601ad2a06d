"""Reasoning and tool-call parsers: pure functions of the text. Any cut of it into chunks gives the same result."""
