"""Aggregates events into snapshots. Pure: no threads, no clocks of its own, no I/O."""
