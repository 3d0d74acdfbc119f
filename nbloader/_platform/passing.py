"""Passes descriptors over a Unix socket, as ancillary data of a message (`SCM_RIGHTS`)."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence
from typing import Any

CAN_PASS = hasattr(socket, "SCM_RIGHTS")
"""Whether the system passes descriptors. Windows does not."""
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
# Plain ints: adding two flags of an enum takes 1 us.
RECEIVE = _CLOSE_ON_EXEC
"""Flags of `recvmsg`: programs that a dataset runs must not inherit our descriptors."""
RECEIVE_AT_ONCE = _CLOSE_ON_EXEC | int(getattr(socket, "MSG_DONTWAIT", 0))
"""The same, and return at once if there is nothing to read."""
CUT_OFF = int(getattr(socket, "MSG_CTRUNC", 0))
"""Flag of a message some of whose descriptors were lost, because this process has reached its limit of open files."""


def space_for(descriptors: int) -> int:
    """Return the size of the ancillary data of a message with this many descriptors, bytes."""
    return socket.CMSG_SPACE(array.array("i").itemsize * descriptors) if CAN_PASS else 0


def with_message(fds: Sequence[int]) -> list[tuple[int, int, Any]]:
    """Return descriptors as the ancillary data of a message."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


def from_message(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in the ancillary data of a message."""
    fds = array.array("i")
    for level, what, raw in ancillary:
        if level == socket.SOL_SOCKET and what == socket.SCM_RIGHTS:
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    if not _CLOSE_ON_EXEC:
        for fd in fds:
            os.set_inheritable(fd, False)
    return fds.tolist()
