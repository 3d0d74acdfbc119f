"""Pins batches and uploads them to an accelerator."""
