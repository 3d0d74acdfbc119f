"""Shared memory: segments for batches, memory files for datasets, memory-mapped files."""
