"""A template: a process that rebuilds a dataset of many Python objects once, and forks the workers of a loader.

    notebook: Template.start() -> fork server -> stem: main() -> fork -> template: load the dataset, serve()
                                                                            |-> worker 0: has the dataset
                                                                            |-> worker 1 ...

Rebuilding 400,000 dicts takes most of a second; without a template each worker would do it, even if the workers have to
share cores. The workers share the pages of large objects, because reference counting changes only the header of an
object. Small objects are copied to a worker page by page as it uses them; `nbloader.share` keeps them shared.

A process that holds an open file, a connection or a thread must not be forked: its children would share the position in
the file, and lack the thread. The template compares descriptors and threads to detect what a dataset opens while it is
unpickled. If it has opened something, the template ends, and the stem, which holds only imported modules, forks workers
that rebuild the dataset themselves. The same happens if rebuilding fails; the workers then report why.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import weakref
from pathlib import Path
from typing import NamedTuple, NoReturn

from nbloader._util.descriptors import close_all, open_pipe
from nbloader._util.output import flush
from nbloader.shm.segment import filled_file
from nbloader.transport import forkserver
from nbloader.transport.channel import Channel, Kind
from nbloader.transport.child_process import die_with_parent
from nbloader.transport.dataset_payload import Files, SharedPickle, load_shared, prepare
from nbloader.transport.environment import Environment
from nbloader.transport.server_process import serve

TEMPLATE_FROM = 4 << 20
"""Minimum size of a pickle, without its large arrays, for workers to be forked from a template, bytes."""
_FDS = Path("/proc/self/fd")
_THREADS = Path("/proc/self/task")


class TemplateMessage(NamedTuple):
    """What a template needs. Pickled into a memory file: the frame with its descriptors must fit into one read."""

    environment: Environment
    files: Files
    """The files of the dataset's large arrays and of its pickle; the descriptors are sent along."""


class SourceFile(NamedTuple):
    """A version of a module's file."""

    path: str
    modified: int
    """Modification time in ns, as in `os.stat`; -1 if the file does not exist."""

    @classmethod
    def now(cls, path: str) -> SourceFile:
        """Return the current version of a file."""
        try:
            return cls(path, Path(path).stat().st_mtime_ns)
        except OSError:
            return cls(path, -1)


# ---- the notebook's side ----------------------------------------------------------------------------------------


def worthwhile(pickled: SharedPickle) -> bool:
    """Whether workers should be forked from a template that has rebuilt this object."""
    return pickled.nbytes >= TEMPLATE_FROM and not pickled.spawning.fds and sys.platform == "linux"


class Template:
    """A template process. It and its workers end when this object is garbage-collected.

    Args:
        pickled: The object that the template rebuilds.
        stdout: Descriptor for what is printed meanwhile.
        stderr: Descriptor for errors.
        preload: Modules for the fork server to import first.
        packages: Further modules of installed packages that the template needs.

    Raises:
        OSError: The system provides no process, pipe or memory.
    """

    def __init__(
        self, pickled: SharedPickle, stdout: int, stderr: int, preload: list[str], packages: frozenset[str]
    ) -> None:
        opened: list[int] = []
        weakref.finalize(self, close_all, opened)  # after an interrupt
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, blocking=True)
        weakref.finalize(self, self._channel.close)
        try:
            open_pipe(opened, opened)  # a lifeline is not needed: when the template ends, its connection closes
            forkserver.fork(theirs.fileno(), stdout, stderr, opened[1], preload, Kind.FORK_TEMPLATE, packages=packages)
        finally:
            theirs.close()
            close_all(opened)
        files = pickled.files()
        message = pickle.dumps(TemplateMessage(Environment.of_this_process(), files._replace(fds=())), 5)
        try:
            filled_file(len(message), [(0, memoryview(message))], opened)
            with contextlib.suppress(OSError):  # it has ended: `usable` returns False
                self._channel.send(Kind.TEMPLATE, fds=(*opened, *files.fds))
        finally:
            close_all(opened)
        self._sources: list[SourceFile] = []

    def usable(self) -> bool:
        """Whether workers can be forked from it: it runs, and no module that it imported has been edited since."""
        try:
            for _kind, body in self._channel.receive(wait=False):
                self._sources = pickle.loads(body)
        except (EOFError, OSError):
            return False
        return all(SourceFile.now(source.path) == source for source in self._sources)

    def fork(self, sock: int, stdout: int, stderr: int, lifeline: int) -> None:
        """Start a worker, like `forkserver.fork`.

        Raises:
            OSError: The template has ended.
        """
        fds = forkserver.fork_request(sock, stdout, stderr, lifeline)
        self._channel.send(Kind.FORK, pickle.dumps([]), fds=fds)


# ---- the processes ----------------------------------------------------------------------------------------------


def main(fd: int) -> NoReturn:
    """Run a stem, which forks the template, until the connection closes.

    Args:
        fd: Descriptor of the connected socket.
    """
    channel = Channel(socket.socket(fileno=fd), blocking=True)
    try:
        while not channel.receive():  # one frame: a read does not go beyond data with other descriptors (unix(7))
            pass
    except EOFError:
        os._exit(0)
    with os.fdopen(channel.take_fd(), "rb") as file:
        message: TemplateMessage = pickle.loads(file.read())
    files = message.files._replace(fds=tuple(channel.take_fd() for _ in message.files.private))
    message.environment.install()
    ready, ready_theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        os.close(ready)
        _run_template(channel, files, ready_theirs)
    os.close(ready_theirs)
    for inherited in files.fds:
        os.close(inherited)
    loaded = _wait_for(ready, channel)
    if loaded is None:
        os.kill(pid, signal.SIGKILL)
    os.close(ready)
    _discard_output()
    os.waitpid(pid, 0)
    if loaded is not False:
        os._exit(0)
    serve(channel)


def _wait_for(ready: int, channel: Channel) -> bool | None:
    """Wait for the template. Return whether it has loaded the dataset; None if the connection has closed before."""
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    poll.register(channel, 0)
    if ready not in {fd for fd, _events in poll.poll()}:
        return None
    return bool(os.read(ready, 1))


def _run_template(channel: Channel, files: Files, ready: int) -> NoReturn:
    modules = set(sys.modules)
    mapped = {_identity(fd) for fd in files.fds}
    before = _descriptors()
    try:
        prepare(load_shared(b"", files))
    except Exception:  # noqa: BLE001 - the user's code may raise anything; the workers will raise it again
        os._exit(1)
    opened = [identity for _fd, identity in _descriptors() - before if identity not in mapped]
    if opened or len(list(_THREADS.iterdir())) > 1:
        os._exit(1)
    _discard_output()
    sources = [SourceFile.now(path) for name in set(sys.modules) - modules if (path := _file_of(name)) is not None]
    os.write(ready, b"\1")
    os.close(ready)
    channel.send(Kind.TEMPLATE, pickle.dumps(sources))
    serve(channel)


def _descriptors() -> set[tuple[int, tuple[int, int]]]:
    """Return the open descriptors, and the file that each refers to (numbers are reused)."""
    found = set()
    for fd in [int(entry.name) for entry in _FDS.iterdir()]:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.add((fd, _identity(fd)))
    return found


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _file_of(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


def _discard_output() -> None:
    """Stop writing to the standard output and error of a worker, which may have ended."""
    flush(sys.stdout)
    flush(sys.stderr)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
