"""Flushes the standard streams of a worker process, which user code may have replaced, closed or set to None."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)


def flush(stream: Any) -> None:
    """Flush `sys.stdout` or `sys.stderr`. If this fails, the output appears later or not at all.

    A user-defined stream may raise any exception, and this is not an error of a batch. torch's workers flush only when
    they end, and also ignore errors.
    """
    try:
        stream.flush()
    except Exception:
        log.debug("%r cannot be flushed", stream, exc_info=True)
