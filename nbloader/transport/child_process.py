"""What a new child process does: it takes its outputs, and ends without running the handlers of its parent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from nbloader._util.output import flush


def use_outputs(stdout: int, stderr: int) -> None:
    """Make these descriptors the standard output and error of this process."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)


def run_and_exit(run: Callable[[], object]) -> NoReturn:
    """In a forked process: run a function and exit, without running the exit handlers of the parent."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - above this frame is only the parent's code, which must not run here
        sys.excepthook(*sys.exc_info())
    finally:
        flush(sys.stdout)
        flush(sys.stderr)
        os._exit(code)
