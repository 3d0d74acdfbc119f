"""Handling the dashboard's messages while a cell keeps the kernel's main thread busy.

A click travels to the kernel as a comm message. What becomes of it depends on the kernel:

- ipykernel 6 has one queue for everything, and it waits until the cell ends.
- ipykernel 7.0 to 7.3 run the messages of a comm on a subshell thread, at once.
- ipykernel 7.4 sends them back to the shell that the comm last spoke from: the busy one.

`unroute()` undoes the last for one widget. `pump()`, called on the main thread from inside a blocked `__next__`, takes
the waiting messages out of the kernel's queue and handles those that are meant for a dashboard. Both are needed: after
a page reload in the middle of a cell the browser finds its widgets again only through messages on the main shell.

`pump()` handles nothing but the messages of adopted widgets, and those by which a reloaded page asks for the widgets
that there are. Everything else (cells, completions, other widgets, whose callbacks nobody expects in the middle of a
cell) keeps its order and waits for the end of the cell, as it would without us.

Both rest on private names of ipykernel. Where these are missing nothing happens, and clicks wait for the cell's end.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

log = logging.getLogger(__name__)

_CONTROL_TARGET = "jupyter.widget.control"
"""The comm by which a reloaded page asks for the state of all widgets."""

_adopted: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The comms whose messages `pump()` handles, by comm id."""

_asking: set[str] = set()
"""Ids of the comms by which reloaded pages ask, from the moment that their opening is read. It is handled a little
later than the question behind it is read."""


def adopt(comm: Any) -> None:
    """Let a comm's messages be handled while a cell is busy.

    Args:
        comm: An open comm of ipykernel. Any other object, or None (no kernel), is left as it is.
    """
    comm_id = getattr(comm, "comm_id", None)
    if comm_id is None:
        return
    _adopted[comm_id] = comm
    unroute(comm)
    # BaseComm.handle_msg also triggers IPython's pre_execute and post_execute. The latter makes matplotlib publish and
    # close the figures of the cell that runs, half drawn; a click on a dashboard should not.
    with contextlib.suppress(AttributeError, TypeError):
        comm.handle_msg = _bare_handler(comm)


def unroute(comm: Any) -> None:
    """Keep ipykernel 7.4 from sending this comm's messages to the shell that it last spoke from.

    Without effect on other versions.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default: default


def _bare_handler(comm: Any) -> Callable[[Any], None]:
    ref = weakref.ref(comm)

    def handle_msg(msg: Any) -> None:
        target = ref()
        callback = getattr(target, "_msg_callback", None)
        if callback is not None:
            callback(msg)

    return handle_msg


def pump() -> int:
    """Handle the dashboards' waiting messages now.

    Call it on the main thread, from inside a cell. It never waits, and never runs an event loop.

    Returns:
        Messages handled; 0 outside a kernel, on another thread, or on a kernel that is not supported.
    """
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
    except Exception:  # private names of another library: whatever fails here must not reach the user's loop
        log.debug("this kernel's messages cannot be handled while a cell runs", exc_info=True)
        return 0
    return len(messages)


def _kernel() -> Any:
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return getattr(get_ipython(), "kernel", None)


Message = tuple[Any, dict[str, Any], Any]
"""Identities, the deserialised message, and the stream that replies go to."""


def _take_from_pair(kernel: Any) -> list[Message]:
    """Ipykernel 7: messages for the main shell wait in a pair of sockets between two threads."""
    import zmq

    manager = kernel.shell_channel_thread.manager
    stream = manager._shell_channel_to_main.to_stream
    if not stream.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        return []
    ours: list[Message] = []
    replies = manager.get_subshell_to_shell_channel_socket(None)
    # Until the socket is empty: its file descriptor is edge-triggered, and what we leave would not wake the loop.
    with _interrupts_held():
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


def _take_from_queue(kernel: Any) -> list[Message]:
    """Ipykernel 6: messages wait in the shell's socket and in the kernel's own queue."""
    import zmq

    ours: list[Message] = []
    with _interrupts_held():
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
    """Take a message apart if it is for a dashboard.

    The header and the content are read without checking the signature: `deserialize` does that, and remembers the
    digest, so it must see each message only once. Messages that are not ours are seen by the kernel later.
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
            _asking.add(comm_id)
        known = kernel.comm_manager.comms.get(comm_id)
        asks = comm_id in _asking or getattr(known, "target_name", None) == _CONTROL_TARGET
        if comm_id not in _adopted and not asks:
            return None
        if kind == "comm_close":
            _asking.discard(comm_id)
        return idents, session.deserialize(parts, content=True, copy=False)
    except Exception:  # malformed: the kernel itself shall complain of it, in its turn
        log.debug("a message that cannot be read is left to the kernel", exc_info=True)
        return None


def _handle(kernel: Any, idents: Any, msg: dict[str, Any], stream: Any) -> None:
    """Run one message's handler. The cell stays the parent of whatever is printed or displayed meanwhile."""
    cell = kernel.get_parent("shell")
    kernel._publish_status("busy", "shell", parent=msg)
    try:
        result = kernel.shell_handlers[msg["header"]["msg_type"]](stream, idents, msg)
        if inspect.iscoroutine(result):
            result.close()
            log.debug("comm handlers of this kernel are coroutines; not supported")
    except Exception:  # as the kernel does: a handler that raises is logged
        log.exception("a widget's message handler raised")
    finally:
        kernel._publish_status("idle", "shell", parent=msg)
        kernel._publish_status("busy", "shell", parent=cell)  # or the page would show the running cell as done


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Put off a KeyboardInterrupt while messages are between two queues, where it would lose them."""
    held: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda signum, _frame: held.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous if previous is not None else signal.default_int_handler)
        if held:
            signal.raise_signal(signal.SIGINT)
