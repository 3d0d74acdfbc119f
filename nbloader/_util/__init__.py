"""Small helpers without knowledge of loading: system facts, random state, wake-ups, text formatting."""
