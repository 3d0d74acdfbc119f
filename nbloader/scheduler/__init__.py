"""Scheduling of batches: a pure state machine without I/O, clocks or threads, and the prefetch policy."""
