"""Loaders were unpickled by `nbloader.torchlike.make`."""

from __future__ import annotations

from nbloader.loader.dataloader import make

__all__ = ["make"]
