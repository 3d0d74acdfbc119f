"""The small protocol by which a dashboard, or any other program, watches and steers a loader.

The dashboard knows a loader only through this: it never touches the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nbloader.events import EventBus
    from nbloader.metrics.snapshot import Point, Snapshot


class LoaderControl(Protocol):
    """What can be asked of a running loader. Every method may be called from any thread at any time.

    None of them waits for the work to be done: they hand a command to the supervisor and return.
    """

    events: EventBus

    @property
    def num_workers(self) -> int:
        """Workers. Assigning another number changes how many there are, in mid-epoch too.

        Raises:
            ValueError: 0 for a loader with workers, or anything but 0 for one without.
            TypeError: Not an int.
        """
        ...

    @num_workers.setter
    def num_workers(self, value: int) -> None: ...

    @property
    def prefetch_factor(self) -> int | None:
        """Batches asked for ahead, per worker; None without workers. Can be assigned in mid-epoch.

        Raises:
            ValueError: It is negative, or there are no workers.
            TypeError: Not an int.
        """
        ...

    @prefetch_factor.setter
    def prefetch_factor(self, value: int) -> None: ...

    def stats(self) -> Snapshot:
        """A frozen picture of the loader now. Cheap enough for four times a second."""
        ...

    def points(self) -> list[Point]:
        """The plots over time of the last minutes, oldest first; `stats()` adds to them.

        Points are added at the end and leave at the beginning; one that was given stays as it was.
        """
        ...

    def restart_workers(self, ids: Iterable[int] | None = None) -> None:
        """Replace these workers (all when None); what they held is made again by others."""
        ...

    def pause(self) -> None:
        """Deliver and dispatch nothing until `resume()`."""
        ...

    def resume(self) -> None:
        """Go on after `pause()` or `step()`."""
        ...

    def step(self) -> None:
        """Pause if that is not so already, and let exactly one batch go to the consumer.

        What credit it frees is dispatched; nothing else moves until the next `step()` or `resume()`.
        """
        ...

    def stack(self, worker: int) -> str:
        """The Python stack of a worker now, innermost frame first, also while it hangs in C code.

        The one method that waits, two seconds at most.

        Raises:
            ValueError: There is no such worker.
            NbloaderError: It does not run now, or does not answer.
        """
        ...

    def on_wait(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` from inside `__next__`, on the consumer's thread, at most every 100 ms.

        It is called while the consumer waits and also when batches are ready at once, so that a front end can
        handle its messages while a cell is busy. It must be quick and must not iterate the loader. One that raises
        is removed and logged.

        Returns:
            A function that unregisters it.
        """
        ...
