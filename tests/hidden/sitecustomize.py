"""Hides from nbloader what only Linux has. Python imports this module when it starts, in worker processes, too.

For tests with NBLOADER_PLATFORM=portable: put this folder into PYTHONPATH.
"""

import builtins
import os
import signal
import socket
import sys

for module, names in (
    (os, ("O_PATH", "eventfd", "fork", "memfd_create", "pidfd_open", "posix_fallocate", "sched_getaffinity")),
    (signal, ("SIGRTMIN",)),
    (socket, ("MSG_CMSG_CLOEXEC",)),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

_import = builtins.__import__


def _of_nbloader(frame):
    """Whether nbloader's code, or the standard library for it, executes a frame: psutil may look into /proc."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in ("pathlib", "os", "io"):
            return name.startswith("nbloader.")
        frame = frame.f_back
    return False


def _import_unless_hidden(name, globals=None, *args, **options):  # noqa: A002 - as it is called
    if name in ("fcntl", "resource") and (globals or {}).get("__name__", "").startswith("nbloader."):
        raise ImportError(f"{name} is hidden from nbloader")
    return _import(name, globals, *args, **options)


def _refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc", "/sys")):
        if _of_nbloader(sys._getframe(1)):
            raise FileNotFoundError(f"{arguments[0]} is hidden from nbloader")
    elif event == "ctypes.dlsym" and arguments[1] in ("prctl", "fork") and _of_nbloader(sys._getframe(1)):
        raise AttributeError(f"{arguments[1]} is hidden from nbloader")


builtins.__import__ = _import_unless_hidden
sys.addaudithook(_refuse)
