"""Run the parts of `make test` beside each other: the documentation, the browser tests, and all other tests.

    python tests/lanes.py MAKE

Most tests wait for processes or pages, so even two cores run several processes of pytest faster than one. The browser
tests share a Jupyter server: one process runs them. The others share the rest: each collects all tests, and runs one
module after another that no other process has taken (`Turns`).

While a command runs, its output is in build/test; it is printed as a whole when the command has ended. The exit status
is 1 if a command fails. SIGINT, SIGTERM and SIGHUP end all commands, with the processes that they have started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import pytest

from nbloader import _platform

ROOT = pathlib.Path(__file__).parents[1]
LOGS = ROOT / "build" / "test"
GRACE = 20.0
"""Seconds that commands have to end after an interrupt. Then they are killed."""
PYTEST = (sys.executable, "-m", "pytest")
NOTEBOOKS = ("--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120")


class Turns:
    """Plugin: run the modules that no other process with the same folder has taken, those that take long first.

    Args:
        folder: Gets an empty file for each module that is taken.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._taken: dict[str, bool] = {}
        """Whether a module is ours, by name."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the modules: first those with slow tests, then by size."""
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        size = {path: path.stat().st_size for path in {item.path for item in items}}
        items.sort(key=lambda item: (item.path in slow, size[item.path], item.path), reverse=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run our tests as pytest's own loop runs all of them.

        The next test, which decides what pytest tears down after a test, is the next one of ours: a module is taken
        when the last test before it begins.
        """
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest's own loop reports the errors
        ours = (item for item in session.items if self._take(item.nodeid.partition("::")[0]))
        item = next(ours, None)
        while item is not None:
            following = next(ours, None)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def _take(self, module: str) -> bool:
        if module not in self._taken:
            try:
                (self._folder / module.replace("/", "-")).touch(exist_ok=False)
                self._taken[module] = True
            except FileExistsError:
                self._taken[module] = False
        return self._taken[module]


@dataclass(frozen=True)
class Command:
    """A command and the name of its log."""

    name: str
    arguments: Sequence[str]


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    name: str
    status: int
    seconds: float
    last_line: str


def lanes(make: str, taken: str) -> list[list[Command]]:
    """Commands to run: lanes beside each other, those of a lane one after another.

    Args:
        make: The program.
        taken: Folder in which processes that share tests note what they have taken.
    """
    rest = ("--ignore=tests/browser", "--ignore=notebooks/course", "tests", "notebooks")
    shared = (*PYTEST, *NOTEBOOKS, f"--share={taken}", "--override-ini=console_output_style=classic", *rest)
    firsts = [
        [Command(name, (make, "--no-print-directory", name)) for name in ("docs", "test-portable")],
        [Command("browser", (*PYTEST, "tests/browser"))],
        *([] for _ in range(max(1, min(_platform.cores(), 4) - 1))),
    ]
    return [[*first, Command(f"tests-{number}", shared)] for number, first in enumerate(firsts, 1)]


async def run_lane(lane: Sequence[Command]) -> list[Ended]:
    """Run commands one after another, whether they fail or not."""
    return [await run(command) for command in lane]


async def run(command: Command) -> Ended:
    """Run a command, and print its output."""
    began = time.monotonic()
    path = LOGS / f"{command.name}.log"
    with path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command.arguments, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        status = await process.wait()
    except asyncio.CancelledError:
        await end(process)
        raise
    seconds = time.monotonic() - began
    print(f"\n######## {command.name}: {' '.join(command.arguments)}\n", flush=True)
    with path.open("rb") as log:
        shutil.copyfileobj(log, sys.stdout.buffer)
    sys.stdout.flush()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return Ended(command.name, status, seconds, lines[-1].strip("= ") if lines else "")


async def end(process: asyncio.subprocess.Process) -> None:
    """Interrupt a command as Ctrl-C does, and kill what has not ended after some time or after a second interrupt."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(process.pid)
        family = [leader, *leader.children(recursive=True)]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), GRACE)
    except asyncio.TimeoutError:
        pass
    finally:
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=GRACE)


async def main(make: str) -> int:
    """Run all lanes. Returns the exit status."""
    LOGS.mkdir(parents=True, exist_ok=True)
    print(f"Running in several processes; {LOGS.relative_to(ROOT)}/*.log show how far they are.", flush=True)
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as taken:
        tasks = [loop.create_task(run_lane(lane)) for lane in lanes(make, taken)]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, lambda: [task.cancel() for task in tasks])
        await asyncio.wait(tasks)
    if any(task.cancelled() for task in tasks):
        print("\nInterrupted.", flush=True)
        return 130
    print("\n######## summary\n")
    ended = [command for task in tasks for command in task.result()]
    for command in ended:
        outcome = "ok" if command.status == 0 else f"FAILED ({command.status})"
        print(f"{command.name:10} {command.seconds:5.0f} s  {outcome}  {command.last_line}")
    return int(any(command.status for command in ended))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
