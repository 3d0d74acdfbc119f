"""Copies batches to torch's pool of pinned memory: with one thread, and away from the consumer's.

torch copies with all of its threads, which takes many times as long while workers use the cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import torch

from nbloader.batch.pytree import map_leaves
from nbloader.device.accelerator import COPY_THREAD

SHORT = 256 * 1024
"""Copies of up to this many bytes take less time than to hand them to another thread."""


class Move(NamedTuple):
    """A tensor to copy, and where to."""

    to: torch.Tensor
    source: torch.Tensor

    def copy(self) -> None:
        """Copy it, on any thread. If `source` is in pinned memory and `to` on a device, the copy may go on after this.

        Autograd's inference mode belongs to a thread, and a tensor that was created in it can only be changed in it.
        """
        with torch.inference_mode(self.to.is_inference()):
            self.to.copy_(self.source, non_blocking=True)


class Staged(NamedTuple):
    """A batch whose tensors are in pinned memory when `fill` has returned."""

    batch: Any
    moves: list[Move]

    @property
    def short(self) -> bool:
        """Whether it is filled at once."""
        return sum(move.source.nbytes for move in self.moves) <= SHORT

    def fill(self) -> None:
        """Copy the tensors that are not in pinned memory yet."""
        for move in self.moves:
            to, source = move
            if to.stride() == source.stride():  # the source has no gaps, like every new tensor
                ctypes.memmove(to.data_ptr(), source.data_ptr(), source.nbytes)
            else:
                move.copy()


def stage(batch: Any, pin: Callable[[Any], Any]) -> Staged:
    """Allocate pinned memory for the plain tensors of a batch that are not in pinned memory.

    Args:
        batch: The batch.
        pin: Pins other leaves that have a method `pin_memory`; returns the pinned leaf.
    """
    moves: list[Move] = []

    def pinned(leaf: Any) -> Any:
        if not is_plain(leaf):
            return pin(leaf)
        if leaf.is_pinned():
            return leaf
        moves.append(Move(torch.empty_like(leaf, pin_memory=True), leaf))
        return moves[-1].to

    return Staged(map_leaves(batch, pinned, method="pin_memory"), moves)


def is_plain(leaf: Any) -> bool:
    """Whether a leaf is a tensor of the host that consists of its values and strides only."""
    return (
        type(leaf) is torch.Tensor
        and leaf.device.type == "cpu"
        and leaf.layout is torch.strided
        and not (leaf.requires_grad or leaf.is_quantized or leaf.is_nested or leaf.is_conj() or leaf.is_neg())
    )


def all_plain(batch: Any, method: str) -> bool:
    """Whether all leaves of a batch that have a method are plain tensors."""
    plain = True

    def look(leaf: Any) -> Any:
        nonlocal plain
        plain = plain and is_plain(leaf)
        return leaf

    map_leaves(batch, look, method=method)
    return plain


class CopyThread:
    """Runs functions one after the other on a thread, which starts with the first one."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, function: Callable[[], object]) -> Future[Any]:
        """Run a function on the thread; here if another thread closes this object, or the interpreter exits."""
        executor = self._executor
        if executor is None:
            executor = self._executor = ThreadPoolExecutor(1, COPY_THREAD)
        try:
            return executor.submit(function)
        except RuntimeError:
            done: Future[Any] = Future()
            done.set_result(function())
            return done

    def close(self) -> None:
        """Run what was submitted, and end the thread."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


class Job:
    """A function that runs once, perhaps on a thread."""

    def __init__(self) -> None:
        self._future: Future[Any] | None = None

    def run(self, function: Callable[[], object], thread: CopyThread | None) -> None:
        """Run a function on a thread, or here if there is none. An interrupt does not mislead `done` and `wait`."""
        if thread is None:
            function()
            return
        try:
            self._future = thread.submit(function)
        except BaseException:  # an interrupt: perhaps it was submitted
            self._future = thread.submit(_nothing)  # runs after it
            raise

    def done(self) -> bool:
        """Whether it no longer runs."""
        return self._future is None or self._future.done()

    def wait(self) -> None:
        """Block until it no longer runs."""
        if self._future is not None:
            wait([self._future])

    def check(self) -> None:
        """Block until it has run, and raise its error."""
        if self._future is not None:
            self._future.result()


def _nothing() -> None:
    pass
