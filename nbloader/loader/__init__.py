"""The public `DataLoader`: configuration, checkpoints and compatibility with torch."""

from __future__ import annotations

from nbloader.loader.dataloader import DataLoader

__all__ = ["DataLoader"]
