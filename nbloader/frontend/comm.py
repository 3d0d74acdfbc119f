"""Handle the comm messages of our widgets while a running cell blocks the kernel's main thread.

A click reaches the kernel as a comm message. What happens next depends on the version of ipykernel:

- ipykernel 6 has one queue for all messages; the comm message waits until the cell ends.
- ipykernel 7.0 to 7.3 handle comm messages immediately, on a subshell thread. They may stop reading messages, though
  (ipython/ipykernel#1554), until something makes them read again: `pump()` does.
- ipykernel 7.4 routes them to the shell from which the comm last sent a message, which is the busy one.

`unroute()` turns off the routing of ipykernel 7.4 for one widget. `pump()`, which a blocked `__next__` calls on the
main thread, takes waiting messages out of the kernel's queue and handles those for our widgets. Both are needed: if
the page is reloaded while a cell is running, the browser finds its widgets again only through messages on the main
shell.

`pump()` handles the messages of adopted widgets, and those with which a reloaded page requests the existing widgets.
All other messages (cells, completions, other widgets, whose callbacks nobody expects during a cell) keep their order
and wait until the cell ends, as they would without nbloader.

Both functions use private names of ipykernel. If these are missing, the functions are no-ops, and clicks wait until the
cell ends. In marimo, which has no kernel of Jupyter, `marimo_messages.py` does the same.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from nbloader._util.signals import interrupts_deferred
from nbloader.frontend import marimo_messages
from nbloader.frontend.host import in_marimo

log = logging.getLogger(__name__)

_CONTROL_TARGET = "jupyter.widget.control"
"""Target name of the comm on which a reloaded page requests the state of all widgets."""

_adopted: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The comms whose messages `pump()` handles, keyed by comm id."""

_control_comms: set[str] = set()
"""Ids of the control comms of reloaded pages. An id is added when the `comm_open` is read, since the request that
follows may be read before the `comm_open` is handled."""


def adopt(comm: Any) -> None:
    """Arrange for the messages of a comm to be handled while a cell is running.

    Args:
        comm: An open comm of ipykernel or marimo. Any other object is ignored, as is None (no kernel).
    """
    comm_id = getattr(comm, "comm_id", None)
    if comm_id is None:
        return
    _adopted[comm_id] = comm
    unroute(comm)
    # BaseComm.handle_msg also triggers IPython's pre_execute and post_execute. The latter makes matplotlib publish and
    # close the unfinished figures of the running cell, which a click on one of our widgets must not do.
    with contextlib.suppress(AttributeError, TypeError):
        make = marimo_messages.handler_of_first_copies if in_marimo() else _handler_without_hooks
        comm.handle_msg = make(comm)


def unroute(comm: Any) -> None:
    """Keep ipykernel 7.4 from routing the messages of this comm to the shell from which it last sent.

    This is a no-op on other versions.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default: default


def _handler_without_hooks(comm: Any) -> Callable[[Any], None]:
    ref = weakref.ref(comm)

    def handle_msg(msg: Any) -> None:
        target = ref()
        callback = getattr(target, "_msg_callback", None)
        if callback is not None:
            callback(msg)

    return handle_msg


def pump() -> int:
    """Handle the waiting messages of adopted widgets.

    Call it on the main thread while a cell is running. It never blocks and never runs an event loop.

    Returns:
        The number of messages handled; 0 outside a kernel, on another thread, or on an unsupported kernel.
    """
    if in_marimo():
        return marimo_messages.pump(_adopted)
    if threading.current_thread() is not threading.main_thread():
        return 0
    kernel = _kernel()
    if kernel is None:
        return 0
    try:
        if getattr(kernel, "shell_channel_thread", None) is not None:
            messages = _take_from_pair(kernel)
        elif hasattr(kernel, "msg_queue"):
            messages = _take_from_queue(kernel)
        else:
            return 0
        for idents, msg, stream in messages:
            _handle(kernel, idents, msg, stream)
    except Exception:  # private names of another library may change; no failure may reach the user's loop
        log.debug("the messages of this kernel cannot be handled while a cell is running", exc_info=True)
        return 0
    return len(messages)


def _kernel() -> Any:
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return getattr(get_ipython(), "kernel", None)


Message = tuple[Any, dict[str, Any], Any]
"""Identities, the deserialized message, and the stream for replies."""


def _take_from_pair(kernel: Any) -> list[Message]:
    """Take our messages from ipykernel 7, where the main shell's wait in a socket pair between two threads."""
    import zmq

    manager = kernel.shell_channel_thread.manager
    if hasattr(manager, "_shell_socket"):
        _read_again(kernel)
    stream = manager._shell_channel_to_main.to_stream
    if not stream.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        return []
    ours: list[Message] = []
    replies = manager.get_subshell_to_shell_channel_socket(None)
    # Read until the socket is empty: its descriptor is edge-triggered, so remaining messages would not wake the loop.
    with interrupts_deferred():
        while True:
            try:
                frames = stream.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return ours
            message = _if_ours(kernel, frames)
            if message is None:
                kernel.io_loop.add_callback(stream._recv_callback, frames)  # in order, once the cell has ended
            else:
                ours.append((*message, replies))


def _read_again(kernel: Any) -> None:
    """Let ipykernel 7.0 to 7.3 read what waits in the shell's socket.

    They send replies on this socket without the stream that reads from it. A request that arrives at that moment is not
    noticed, and neither is any later one (ipython/ipykernel#1554).
    """
    import zmq

    with interrupts_deferred():
        kernel.shell_channel_thread.io_loop.add_callback(kernel.shell_stream.flush, zmq.POLLIN)


def _take_from_queue(kernel: Any) -> list[Message]:
    """Take our messages from ipykernel 6, where messages wait in the shell's socket and in the kernel's queue."""
    import zmq

    ours: list[Message] = []
    with interrupts_deferred():
        kernel.shell_stream.flush(zmq.POLLIN)  # from the socket into the queue
        keep = []
        while kernel.msg_queue.qsize():
            item = kernel.msg_queue.get_nowait()
            _, dispatch, args = item
            message = None
            if len(args) == 1 and getattr(dispatch, "__func__", None) is type(kernel).dispatch_shell:
                message = _if_ours(kernel, args[0])
            if message is None:
                keep.append(item)
            else:
                ours.append((*message, kernel.shell_stream))
        for item in keep:
            kernel.msg_queue.put_nowait(item)
    return ours


def _if_ours(kernel: Any, frames: list[Any]) -> tuple[Any, dict[str, Any]] | None:
    """Deserialize a message if it is for an adopted widget or on a control comm; return None for any other message.

    The header and the content are first read without checking the signature. `deserialize` checks it and records the
    digest, so it must see each message only once. The kernel deserializes the other messages later.
    """
    session = kernel.session
    try:
        idents, parts = session.feed_identities(frames, copy=False)
        kind = session.unpack(parts[1].bytes)["msg_type"]
        if kind not in ("comm_open", "comm_msg", "comm_close"):
            return None
        content = session.unpack(parts[4].bytes)
        comm_id = content.get("comm_id")
        if kind == "comm_open" and content.get("target_name") == _CONTROL_TARGET:
            _control_comms.add(comm_id)
        known = kernel.comm_manager.comms.get(comm_id)
        is_control = comm_id in _control_comms or getattr(known, "target_name", None) == _CONTROL_TARGET
        if comm_id not in _adopted and not is_control:
            return None
        if kind == "comm_close":
            _control_comms.discard(comm_id)
        return idents, session.deserialize(parts, content=True, copy=False)
    except Exception:  # malformed: the kernel reports the message when it reads it
        log.debug("an unreadable message is left to the kernel", exc_info=True)
        return None


def _handle(kernel: Any, idents: Any, msg: dict[str, Any], stream: Any) -> None:
    """Run the handler of one message. The running cell remains the parent of anything that the handler prints."""
    cell = kernel.get_parent("shell")
    kernel._publish_status("busy", "shell", parent=msg)
    try:
        result = kernel.shell_handlers[msg["header"]["msg_type"]](stream, idents, msg)
        if inspect.iscoroutine(result):
            result.close()
            log.debug("comm handlers of this kernel are coroutines; not supported")
    except Exception:  # as in the kernel: a handler that raises is logged
        log.exception("the message handler of a widget raised")
    finally:
        kernel._publish_status("idle", "shell", parent=msg)
        kernel._publish_status(
            "busy", "shell", parent=cell
        )  # otherwise the page would show the running cell as finished
