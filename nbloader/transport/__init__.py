"""Moves messages and datasets between the notebook's process and the workers."""
