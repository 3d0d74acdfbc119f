"""Aggregates events and gauges into snapshots; measures the worker processes for them."""
