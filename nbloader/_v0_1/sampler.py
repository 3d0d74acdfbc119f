"""The sampler of large shuffled datasets was defined in `nbloader.sampler`."""

from __future__ import annotations

from nbloader.sampling.samplers import LargeRandomSampler

__all__ = ["LargeRandomSampler"]
