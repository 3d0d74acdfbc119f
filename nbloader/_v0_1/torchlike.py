"""Loaders were unpickled by `nbloader.torchlike.make`."""

from __future__ import annotations

from nbloader.loader.torch_compat import make

__all__ = ["make"]
