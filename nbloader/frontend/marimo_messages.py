"""Handle the messages of our widgets while a cell of marimo is busy.

marimo puts each message of a widget into two queues: one for all requests, which its main loop reads between cells,
and one from which it merges movements of sliders. `pump()` takes the second copies of our messages while the loop waits
for a batch, and puts those of other widgets back. When the main loop reads the other copy of a message, it is skipped.

This uses private names of marimo. If they are missing, clicks wait until the cell ends.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import queue
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from nbloader._util.signals import interrupts_deferred

log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Number of messages whose second copy is recognized."""

_handled: dict[str, None] = {}
"""Tokens of messages that were handled once, oldest first."""


def handler_of_first_copies(comm: Any) -> Callable[[Any], None]:
    """Return a handler for the messages of a comm that skips the second copy of each.

    Args:
        comm: An open comm of marimo.
    """
    ref = weakref.ref(comm)

    def handle_msg(msg: Any) -> None:
        callback = getattr(ref(), "_msg_callback", None)
        if callback is not None and _is_first(msg):
            callback(msg)

    return handle_msg


def _is_first(msg: Mapping[str, Any]) -> bool:
    content = msg["content"]["data"].get("content")
    token = content.get("token") if isinstance(content, dict) else None
    if token is None:
        return True
    if token in _handled:
        del _handled[token]
        return False
    _handled[token] = None
    if len(_handled) > REMEMBERED:
        del _handled[next(iter(_handled))]
    return True


def pump(adopted: Mapping[str, Any]) -> int:
    """Handle the waiting messages of adopted widgets; see `comm.pump`.

    Args:
        adopted: The comms of these widgets, by their id.

    Returns:
        The number of messages handled.
    """
    try:
        waiting = _messages()
        if waiting is None:
            return 0
        ours: list[Any] = []
        others: list[Any] = []
        with interrupts_deferred(), contextlib.suppress(queue.Empty):
            while True:
                command = waiting.get_nowait()
                (ours if getattr(command, "model_id", None) in adopted else others).append(command)
        for command in others:
            waiting.put_nowait(command)
    except Exception:  # private names of another library may change; no failure may reach the user's loop
        log.debug("the messages of this version of marimo cannot be handled while a cell is running", exc_info=True)
        return 0
    for command in ours:
        try:
            adopted[command.model_id].handle_msg(command.into_comm_payload())
        except Exception:  # as in marimo: a handler that raises is logged
            log.exception("the message handler of a widget raised")
    return len(ours)


def _messages() -> Any:
    """Return the queue of the messages of widgets; None on a thread that runs no cells."""
    from marimo._runtime.context import safe_get_context

    kernel = getattr(safe_get_context(), "_kernel", None)
    if kernel is None:
        return None
    return inspect.getclosurevars(kernel.enqueue_control_request).nonlocals["set_ui_element_queue"]
