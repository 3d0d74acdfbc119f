"""Helpers that are independent of data loading: system limits, random state, wake-ups, text formatting, validation."""
