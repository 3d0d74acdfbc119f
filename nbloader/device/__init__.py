"""Pins batches and uploads them to accelerators."""
