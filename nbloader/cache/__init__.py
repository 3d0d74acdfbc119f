"""The cache of samples: what deterministic functions of a dataset return, kept for all workers."""
