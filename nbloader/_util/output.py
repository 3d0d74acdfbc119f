"""The standard streams of a worker process, which the user's code may have replaced, closed or set to None."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)


def flush(stream: Any) -> None:
    """Flush `sys.stdout` or `sys.stderr`. Where that fails, what was printed appears later or not at all.

    A stream of the user's own may raise anything, and it is no fault of a batch. torch's workers flush only when they
    end, and ignore errors too.
    """
    try:
        stream.flush()
    except Exception:
        log.debug("%r cannot be flushed", stream, exc_info=True)
