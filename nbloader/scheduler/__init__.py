"""Decides which worker loads which batch and when: a state machine without I/O, clocks or threads."""
