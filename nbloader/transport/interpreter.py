"""Starts a Python interpreter that finds the modules of this one: for clean zygotes, and for spawned workers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

from nbloader.transport.environment import in_kernel

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def python_command(entry: str) -> list[str]:
    """Return the command that runs `entry` (code) in a new interpreter with the `sys.path` of this one.

    Raises:
        OSError: There is no interpreter to start: `sys.executable` is empty.
    """
    if not sys.executable:
        raise FileNotFoundError(f"sys.executable is {sys.executable!r}: set it to the path of a Python interpreter")
    entries: list[object] = list(sys.path)  # Python ignores entries that are not str, such as a pathlib.Path
    path = [place for place in entries if isinstance(place, str)]
    ignore = "import _signal; _signal.signal(_signal.SIGINT, _signal.SIG_IGN)"  # an interrupt is meant for the notebook
    code = f"{ignore}; import sys; sys.path[:] = {path!r}; {entry}"
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code]  # type: ignore[attr-defined]


def start_interpreter(entry: str, fds: tuple[int, ...], **options: Any) -> subprocess.Popen[bytes]:
    """Run code in a new interpreter.

    pydevd, on which JupyterLab's debugger is built, changes the command of each new interpreter so that it is debugged
    too. But a kernel's debugger supports only one process: the new interpreter would wait for the debugger, imports
    would take many times as long, and pydevd's threads would keep the process alive after the kernel has ended. In a
    kernel, that change is therefore skipped. The debuggers of IDEs, which do debug child processes, still attach.

    Args:
        entry: The code.
        fds: The descriptors that the process inherits.
        **options: Further arguments of `subprocess.Popen`.

    Raises:
        OSError: The process cannot be started.
    """
    skip = getattr(sys.modules.get("pydevd"), "skip_subprocess_arg_patch", None)
    with skip() if skip is not None and in_kernel() else contextlib.nullcontext():
        return subprocess.Popen(python_command(entry), pass_fds=fds, stdin=subprocess.DEVNULL, **options)


def worker_environment() -> dict[str, str]:
    """Return this process's environment, with one thread for each numeric library whose thread count is not set."""
    return {**dict.fromkeys(ONE_THREAD, "1"), **os.environ}
