"""Renders snapshots and events as text, HTML and trace files."""
