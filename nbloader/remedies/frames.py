"""Code that keeps the columns of a data frame as arrays."""

from __future__ import annotations

COLUMNS_OF = '''\
_columns = {}

def columns_of(frame):
    """The columns of a data frame as arrays, converted once per process."""
    if id(frame) not in _columns:
        _columns[id(frame)] = frame, {name: frame[name].to_numpy() for name in frame}
    return _columns[id(frame)][1]
'''
