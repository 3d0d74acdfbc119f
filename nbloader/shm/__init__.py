"""Shared memory: segments and arenas for batches, memory files for datasets, memory-mapped files."""
