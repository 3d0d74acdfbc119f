"""Checks of unit 2: build a loader in 150 lines."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from multiprocessing import connection
from typing import Any

from . import Hint, Unit, attempt, choices, number

unit = Unit()
progress = unit.progress

STARTING = 30.0
"""Seconds that processes may take to start and finish a few batches on a busy machine."""
ENDING = 2.0
"""Seconds that a loader has to end after its worker processes have ended."""


class Batch:
    """A batch that can be watched by a weak reference."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"batch {self.n}"


@unit.task("2.1 The reorder buffer")
def buffer(cls: Callable[[], Any]) -> str:
    """`put(number, batch)` and `ready()`."""
    attempt(functools.partial(_in_all_orders, cls))
    return (
        "Every order of arrival gives the same order of delivery, and nothing is kept."
    )


def _in_all_orders(cls: Callable[[], Any]) -> None:
    for order in itertools.permutations(range(4)):
        restored, arrived, delivered = cls(), set(), 0
        references = []
        for n in order:
            batch = Batch(n)
            references.append(weakref.ref(batch))
            restored.put(n, batch)
            del batch
            arrived.add(n)
            # All before it have arrived.
            due = next(i for i in itertools.count() if i not in arrived)
            made = restored.ready()
            if not isinstance(made, (list, tuple)):
                raise Hint(
                    f"ready() returned {made!r}: a list of batches is needed, which may be empty."
                )
            numbers = [b.n for b in made]
            story = f"after batches {sorted(arrived)} had arrived (in the order {order}), ready() returned {numbers}"
            if any(n < delivered for n in numbers):
                raise Hint(
                    f"{story}, with a batch that was returned before: each is delivered once, not twice."
                )
            if any(n >= due for n in numbers):
                raise Hint(
                    f"{story}, but batch {due} is missing: there is a gap. What comes behind it has to wait."
                )
            if numbers != sorted(numbers):
                raise Hint(f"{story}: not in order.")
            if numbers != list(range(delivered, due)):
                raise Hint(
                    f"{story}: too few. One late batch may make several others ready at once."
                )
            delivered = due
            del made
        # Else, spare a slow look at all objects.
        if any(reference() is not None for reference in references):
            gc.collect()
        kept = [
            n
            for n, reference in zip(order, references, strict=True)
            if reference() is not None
        ]
        if kept:
            raise Hint(f"your buffer still holds the batches {sorted(kept)} after it has returned them: their memory "
                       "is never free again.")  # fmt: skip


class Numbers:
    """Sample i is i; sample `broken` raises, and sample `missing` another kind of error."""

    def __init__(
        self, length: int, broken: int | None = None, missing: int | None = None
    ) -> None:
        self.length, self.broken, self.missing = length, broken, missing

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> int:
        if i == self.broken:
            raise OSError(f"sample {i} cannot be read")
        if i == self.missing:
            raise KeyError(f"sample {i} is missing")
        return i


class EndOfTasks:
    """A queue of given tasks that ends with None."""

    def __init__(self, tasks: Iterable[Any]) -> None:
        self.items = collections.deque([*tasks, None])

    def get(self, *_: Any, **__: Any) -> Any:
        """The next task."""
        if not self.items:
            raise Hint("your worker asks for another task after None: it never ends.")
        return self.items.popleft()


class Results(list[Any]):
    """A queue that can only be filled."""

    def put(self, item: Any) -> None:
        """Keep a result."""
        self.append(item)


@unit.task("2.2 The worker")
def worker(function: Callable[..., Any]) -> str:
    """`work(dataset, collate, tasks, results)`."""
    tasks = EndOfTasks([(5, [2, 3]), (6, [0, 1]), (7, [9, 4]), (8, [6])])
    results = Results()
    try:
        attempt(function, Numbers(10, broken=9, missing=6), tuple, tasks, results)
    except Hint as hint:
        if "sample 9 cannot be read" in str(hint):
            raise Hint(
                "sample 9 raised, and the exception ended the worker: nobody answers for batch 7, and the loop waits "
                "for it forever. Catch it, and send it."
            ) from None
        if "sample 6 is missing" in str(hint):
            raise Hint(
                "sample 6 raised a KeyError, and it ended the worker: nobody answers for batch 8. Catch `Exception`: "
                "you do not know what a dataset raises."
            ) from None
        if "NoneType" in str(hint):
            raise Hint(
                f"{hint} None is no task: it means that the worker should end."
            ) from None
        raise
    if tasks.items:
        raise Hint(
            f"your worker ended with {len(tasks.items)} items left in its queue."
        )
    for result in results:
        if not isinstance(result, tuple) or len(result) != 3:
            raise Hint(f"a result is a tuple (number, batch, error), not {result!r}.")
    made = {result[0]: result[1:] for result in results}
    if sorted(made) != [5, 6, 7, 8]:
        raise Hint(
            f"there must be one result for each of the batches 5, 6, 7, 8. You sent results for {sorted(made)}."
        )
    if isinstance(made[5][0], list):
        raise Hint(
            "the batch is a list of samples: call collate on it. (Here collate makes a tuple.)"
        )
    if made[5][0] != (2, 3):
        raise Hint(
            f"batch 5 has the indices [2, 3]. Its samples are (2, 3), and you sent {made[5][0]!r}."
        )
    for n in (7, 8):
        sent = made[n][1]
        if not isinstance(sent, BaseException):
            raise Hint(
                f"the error of batch {n} is {sent!r}: send the exception itself, so that the loop can raise it."
            )
    if any(made[n][0] is not None for n in (7, 8)) or any(
        made[n][1] is not None for n in (5, 6)
    ):
        raise Hint("either the batch or the error is None in each result.")
    return "It answers each task, and a broken sample costs one batch, not a worker."


class Scripted:
    """A backend without threads, in which the last task that was sent is finished first."""

    def __init__(self, total: int, window: int) -> None:
        self.total, self.window = total, window
        self.sent: list[Any] = []
        self.open: list[Any] = []
        self.ends = self.workers = self.joined = self.delivered = 0
        self.dataset: Any = None
        self.collate: Any = None

    def queue(self) -> Any:
        """A queue; its use shows whether it is that of tasks or of results."""
        return ScriptedQueue(self)

    def start(
        self, _function: Any, dataset: Any, collate: Any, tasks: Any, results: Any
    ) -> Any:
        """Note that a worker was started."""
        if tasks is results:
            raise Hint("tasks and results need a queue each.")
        self.dataset, self.collate = dataset, collate
        self.workers += 1
        return self

    def put(self, task: Any) -> None:
        """A task was sent."""
        if task is None:
            self.ends += 1
            return
        self.sent.append(task)
        self.open.append(task)
        if len(self.sent) > self.delivered + self.window:
            raise Hint(
                f"{len(self.sent)} batches were sent when the loop had {self.delivered}, and the window is "
                f"{self.window}: a fast worker would fill the memory. A batch counts until it is yielded."
            )

    def get(self) -> Any:
        """The loader waits for a result."""
        if self.workers == 0:
            raise Hint("no worker was started before your loader waits for a result.")
        if not self.open:
            raise Hint(
                "your loader waits for a result, but all tasks that it sent are done: it hangs here."
            )
        if len(self.sent) < min(self.total, self.delivered + self.window):
            raise Hint(
                f"your loader waits with {len(self.sent) - self.delivered} batches on the path, and the window has "
                f"room for {self.window}: the other workers are idle. Prefetch: send first, then wait."
            )
        number, indices = self.open.pop()
        try:
            return number, self.collate([self.dataset[i] for i in indices]), None
        except OSError as error:
            return number, None, error

    def join(self, *_: Any) -> None:
        """The loader waits for the end of a worker."""
        if self.ends < self.workers:
            raise Hint(
                f"your loader joins a worker, but None was sent {self.ends} of {self.workers} times: it waits forever."
            )
        self.joined += 1


class ScriptedQueue:
    """One of the two queues of `Scripted`."""

    def __init__(self, script: Scripted) -> None:
        self.put, self.get = script.put, script.get


@unit.task("2.3 The loader, step 1: an epoch")
def epoch(cls: Callable[..., Iterable[Any]]) -> str:
    """The batches of `EpochLoader` are all there, in order, and the window is kept. Its workers need not end."""
    attempt(functools.partial(_whole_epoch, cls))
    return "All batches, in order, and never more of them on the path than the window."


@unit.task("2.3 The loader, step 2: errors and the end")
def loader(cls: Callable[..., Iterable[Any]]) -> str:
    """`Loader(dataset, batch_size, num_workers=, window=, collate=, backend=)`."""
    attempt(
        lambda: [
            _all_ended(script, "after the last batch") for script in _whole_epoch(cls)
        ]
    )
    attempt(functools.partial(_left_early, cls))
    attempt(functools.partial(_broken_sample, cls))
    attempt(functools.partial(_batches_of_none, cls))
    return "In order, never more than the window, errors at their place, and no worker is left behind."


def _whole_epoch(cls: Callable[..., Iterable[Any]]) -> list[Scripted]:
    scripts = []
    for length, window in ((23, 4), (6, 10)):
        script = Scripted((length + 1) // 2, window)
        got: list[Any] = []
        for batch in cls(
            Numbers(length),
            2,
            num_workers=3,
            window=window,
            collate=tuple,
            backend=script,
        ):
            got.append(batch)
            script.delivered = len(got)
        if script.workers != 3:
            raise Hint(f"num_workers is 3, and you started {script.workers}.")
        expected = [tuple(range(at, min(at + 2, length))) for at in range(0, length, 2)]
        if got != expected and sorted(got) == expected:
            raise Hint(
                f"the batches are all there, but the loop gets them in the order {[b[0] // 2 for b in got]}."
            )
        if len(got) < len(expected):
            raise Hint(f"the loop gets {len(got)} of {len(expected)} batches: yours loses those that were still on the "
                       "path when there was nothing left to send.")  # fmt: skip
        if got != expected:
            raise Hint(f"the loop gets {got}, and the batches are {expected}.")
        scripts.append(script)
    return scripts


def _left_early(cls: Callable[..., Iterable[Any]]) -> None:
    script = Scripted(20, 4)
    iterator = iter(
        cls(Numbers(40), 2, num_workers=3, window=4, collate=tuple, backend=script)
    )
    next(iterator)
    script.delivered = 1
    iterator.close()  # type: ignore[attr-defined]
    _all_ended(script, "when the loop is left early")


def _broken_sample(cls: Callable[..., Iterable[Any]]) -> None:
    script = Scripted(20, 4)
    got: list[Any] = []
    try:
        for batch in cls(
            Numbers(40, broken=5),
            2,
            num_workers=3,
            window=4,
            collate=tuple,
            backend=script,
        ):
            got.append(batch)
            script.delivered = len(got)
    except OSError:
        pass
    else:
        raise Hint(
            f"sample 5 cannot be read, and your loader raised nothing: the loop got {got[:4]} and so on."
        )
    if got != [(0, 1), (2, 3)]:
        raise Hint(
            f"the error of batch 2 was raised after {len(got)} batches. The loop should first get batches 0 and 1, "
            "whatever is finished first: an error that comes at another place each time is hard to find."
        )
    _all_ended(script, "when a batch has failed")


def _batches_of_none(cls: Callable[..., Iterable[Any]]) -> None:
    hint = Hint(
        "a batch may be None, and your loop does not get it. How does your buffer know that a batch is there, and your "
        "loader that one has failed?"
    )
    got: list[Any] = []
    script = Scripted(3, 4)
    try:
        for batch in cls(
            Numbers(6),
            2,
            num_workers=3,
            window=4,
            collate=lambda _: None,
            backend=script,
        ):
            got.append(batch)
            script.delivered = len(got)
    except (Hint, TypeError):
        # The loader waits for a result that it has already, or raises the missing error.
        raise hint from None
    if got != [None] * 3:
        raise hint


def _all_ended(script: Scripted, when: str) -> None:
    if script.joined < script.workers:
        raise Hint(
            f"{script.workers} workers were started, and {when} None was sent {script.ends} of {script.workers} times "
            f"and {script.joined} were joined: the others wait for a task until the program ends."
        )


class Counting(Numbers):
    """Counts the samples that were read."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.lock, self.count = threading.Lock(), 0

    def __getitem__(self, i: int) -> int:
        with self.lock:
            self.count += 1
        return i


@unit.task("2.3 The loader, with threads")
def threads(cls: Callable[..., Iterable[Any]], dataset: Any) -> str:
    """Iterate it with real threads, twice, and count those that are left."""
    before = set(threading.enumerate())

    def twice() -> list[Any]:
        return [list(cls(dataset, 4, num_workers=3, window=5)) for _ in range(2)]

    for got in attempt(twice):
        if [i for batch in got for i in batch] != list(range(len(dataset))):
            raise Hint(f"with threads the loop gets {got}.")
    left = [
        t
        for t in threading.enumerate()
        if t not in before and t.name != "answer of a student"
    ]
    if left:
        raise Hint(f"{len(left)} threads are left after the epoch.")
    return "Two epochs with three threads, all in order, and no thread is left."


@unit.task("2.4 The loop is left early")
def abandon(samples_read: Any, cls: Callable[..., Iterable[Any]]) -> str:
    """Compare the prediction with what the student's loader does."""
    answer = number(samples_read, "samples")
    dataset = Counting(1000)

    def leave() -> None:
        for _batch in cls(dataset, 5, num_workers=2, window=4):
            break
        gc.collect()  # ends the generator

    attempt(leave)
    if answer == dataset.count:
        return f"{dataset.count} samples were read, and 5 were used. The rest was work for nothing."
    if answer == 5:
        raise Hint(
            "that is what the loop used. What was sent to the workers before the loop had its first batch?"
        )
    if answer == 1000:
        raise Hint("your loader does not send everything: it has a window.")
    raise Hint(
        f"with your loader it was another number. The window counts batches of 5 samples; {answer:g} is wrong."
    )


@unit.task("2.5 Processes")
def processes(
    backend: Callable[[], Any], cls: Callable[..., Iterable[Any]], dataset: Any
) -> str:
    """Iterate with two processes. If one ends too early, the loop would hang: that is noticed here."""
    watched = Watched(attempt(backend))
    finished: queue.SimpleQueue[Any] = watched.news

    def run() -> None:
        try:
            finished.put(
                attempt(
                    lambda: list(
                        cls(dataset, 4, num_workers=2, window=4, backend=watched)
                    ),
                    limit=STARTING,
                )
            )
        except Hint as hint:
            finished.put(hint)

    threading.Thread(target=run, daemon=True).start()
    news = finished.get()
    if news is watched:  # the workers have ended: at the end of the epoch, or too early
        try:
            news = next(
                n
                for n in iter(functools.partial(finished.get, timeout=ENDING), None)
                if n is not watched
            )
        except queue.Empty:
            raise Hint(
                "a worker process has ended, and the loop still waits for its batches. Its traceback is printed where "
                "this notebook was started. `Can't get attribute` there means that a class of the notebook was sent by "
                "its name. Send it with cloudpickle."
            ) from None
    if isinstance(news, Hint):
        if "'NoneType' object has no attribute 'join'" in str(news):
            raise Hint(
                "`start` has to return the process, so that the loader can join it."
            )
        if "can only join a started process" in str(news) or "did not end" in str(news):
            raise Hint(
                "the loop waits for batches that nobody makes: does `start` call the start() of the process?"
            )
        raise news
    numbers = [i for batch in news for i, _pid in batch]
    pids = {pid for batch in news for _i, pid in batch}
    if numbers != list(range(len(dataset))):
        raise Hint(f"the batches are {news}.")
    if os.getpid() in pids:
        raise Hint(
            f"samples were read by process {os.getpid()}, which is this notebook: you started no process."
        )
    readers = "another process" if len(pids) == 1 else f"{len(pids)} other processes"
    return f"The samples were read by {readers}, and the class came from your notebook."


class Watched:
    """A backend that reports when all worker processes that it has started have ended."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.queue = backend.queue
        self.running = 0
        self.counting = threading.Lock()

    def start(self, *arguments: Any) -> Any:
        """Start a worker and wait for its end on a thread."""
        started = self.backend.start(*arguments)
        if getattr(started, "pid", None) is not None:
            with self.counting:
                self.running += 1
            threading.Thread(
                target=self._wait, args=(started.sentinel,), daemon=True
            ).start()
        return started

    def _wait(self, sentinel: int) -> None:
        connection.wait([sentinel])
        with self.counting:
            self.running -= 1
            if not self.running:
                self.news.put(self)


@unit.task("2.6 What your loader survives")
def survives(answer: Any) -> str:
    """Which failures end the loop, and which let it hang."""
    choices(
        answer,
        {
            "a sample raises an exception": True,
            "the loop is left early, with small batches": True,
            "a worker process is killed": False,
            "a sample never returns": False,
            "a batch is None": True,
        },
        {
            "a sample raises an exception": "you wrote the worker that catches it, and the loader that raises it.",
            "the loop is left early, with small batches": "that is what `finally` is for.",
            "a worker process is killed": "who would put the result of its batch into the queue?",
            "a sample never returns": "the loop waits for a result, and nothing limits how long.",
            "a batch is None": "the error is None, too, so it is an ordinary result. Only a *task* of None is special.",
        },
    )
    return (
        "Both cases hang for the same reason: the loop waits for one queue only, and not for its workers. With "
        "processes and more than 64 KiB of unread results, leaving the loop early hangs, too: a worker waits in `put`, "
        "since nobody reads."
    )
