"""Decides which samples make up each batch: samplers, permutations, epoch plans, shards of iterable datasets."""
