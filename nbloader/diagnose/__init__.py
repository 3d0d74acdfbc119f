"""Finds what limits the loop, from measurements."""
