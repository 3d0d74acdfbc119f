"""The environment of the notebook's process: what its other processes take over from it."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import NamedTuple

from nbloader._util.system import ROOT, working_directory
from nbloader.transport.settings import Settings

log = logging.getLogger(__name__)


class Environment(NamedTuple):
    """The environment of the notebook's process, which a worker takes over, and a fork server that imports packages."""

    sys_path: list[str]
    cwd: str
    environ: dict[str, str]
    argv: list[str]
    settings: Settings | None
    """Settings of libraries; None for a fork server, which imports packages for workers with other settings."""

    @classmethod
    def of_this_process(cls) -> Environment:
        """That of this process, now."""
        settings = Settings.of_this_process()
        return cls(list(sys.path), working_directory() or ROOT, dict(os.environ), list(sys.argv), settings)

    def install(self) -> None:
        """In another process: install it there. That process's own thread limits stay."""
        sys.path[:] = self.sys_path
        sys.argv[:] = self.argv
        present = dict(os.environ)
        for name in present.keys() - self.environ.keys():
            if not name.endswith("_NUM_THREADS"):
                del os.environ[name]
        os.environ.update(self.environ.items() - present.items())
        if self.settings is not None:
            self.settings.install()
        try:
            os.chdir(self.cwd)
        except OSError as error:
            text = "a worker cannot enter the working directory %s of the notebook, and finds relative paths in %s: %s"
            log.warning(text, self.cwd, Path.cwd(), error)
