"""Digest of the dashboard's panels. The outputs that are stored in a notebook carry the one of their time."""

from __future__ import annotations

import hashlib
from pathlib import Path

DASHBOARD = Path(__file__).resolve().parents[1] / "nbloader" / "dashboard"
KEY = "panels"
"""Name of the digest in the metadata of a notebook."""


def panels_digest() -> str:
    """Return a digest of the source of what the dashboard shows."""
    files = [*(DASHBOARD / "panels").glob("*.py"), *DASHBOARD.rglob("*.js"), *DASHBOARD.rglob("*.css")]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
