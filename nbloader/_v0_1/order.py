"""Samplers with public names were defined in `nbloader.order`."""

from __future__ import annotations

from nbloader.sampling.samplers import FilterSampler, FullBatches, IntervalSampler

__all__ = ["FilterSampler", "FullBatches", "IntervalSampler"]
