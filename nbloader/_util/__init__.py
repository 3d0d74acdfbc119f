"""Helpers without knowledge of data loading: system limits, random state, wake-ups, text formatting, validation."""
