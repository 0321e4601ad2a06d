"""Runs execution plans on a device. Knows rows, pages and tensors; nothing about requests' text or policy."""
