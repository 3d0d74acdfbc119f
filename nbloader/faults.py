"""Errors of workers, raised in the notebook: the original type, the worker's traceback, what to do."""

from __future__ import annotations

import pickle
from typing import Any, NoReturn

from nbloader.errors import WorkerTraceback


def raise_described(error: tuple[bytes | None, str, str, str], note: str) -> NoReturn:
    """Raise an error that a worker described (`worker.describe`).

    Args:
        error: (pickle or None, type name, message, traceback).
        note: Where it happened, added as a note.

    Raises:
        Exception: Of the original type where it can be rebuilt, else RuntimeError; its `__cause__` is the worker's
            traceback as text.
    """
    data, name, message, trace = error
    rebuilt: Any = None
    if data is not None:
        try:
            rebuilt = pickle.loads(data)
        except Exception:  # an exception's own unpickling may raise anything
            rebuilt = None
    if not isinstance(rebuilt, Exception):
        rebuilt = RuntimeError(f"{name}: {message}")
    add_note(rebuilt, note)
    raise rebuilt from WorkerTraceback(trace)


def add_note(error: BaseException, note: str) -> None:
    """As `BaseException.add_note`, on Python 3.10 too (where the note is kept and not printed)."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), note]


def died_message(number: int, indices: Any, deaths: int, reason: str, tail: str) -> str:
    """What `WorkerDiedError` says about a batch that killed its workers."""
    shown = repr(indices)
    if len(shown) > 300:
        shown = shown[:300] + "..."
    return (
        f"batch {number} (samples {shown}) killed {deaths} workers in a row; the last one was {reason}. "
        "A crash in native code or too little memory are the usual causes: load these samples with num_workers=0 to "
        f"see it. The worker's standard error ended with:\n{tail or '(nothing)'}"
    )
