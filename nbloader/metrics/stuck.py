"""When a worker counts as stuck. Constants only: whoever ends workers needs them, and none of the metrics."""

from __future__ import annotations

STUCK_S, STUCK_TIMES = 2.0, 10
"""A worker is stuck if it has been processing a batch for longer than `STUCK_S` seconds and for more than `STUCK_TIMES`
times the median time to produce one. A loop is stalled if it has been waiting for longer than `STUCK_S` seconds and for
more than `STUCK_TIMES` times both that median and the median wait."""
