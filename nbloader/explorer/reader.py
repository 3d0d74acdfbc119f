"""Reads samples in a worker: `SampleReader` is the dataset of the explorer's workers.

    dataset[Request] -> the sample, timed -> describe -> ReadSample, some kB -> the notebook's process

Thus a 40-megapixel picture stays in the worker. An error raised for a sample is returned as a value.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from nbloader._util.format import clean
from nbloader._util.signals import raised_by_handler
from nbloader.events.remote_errors import describe as describe_error
from nbloader.explorer.adapters import EndOfStreamError
from nbloader.explorer.batch_samples import WHOLE, BatchSamples
from nbloader.explorer.describer import Hints, Renderer, describe
from nbloader.explorer.field import caption_text, card_fields, to_json
from nbloader.explorer.kinds import KINDS, Names
from nbloader.explorer.normalization import Normalization
from nbloader.explorer.texts import printable
from nbloader.explorer.view import FULL_TEXT, View
from nbloader.workers.in_process import SampleDelivery

PATH_NAMES = ("filename", "path")


class Request(NamedTuple):
    """A request for one sample, under one seed, as one view needs it."""

    index: int  # type: ignore[assignment]  # it shadows tuple.index
    draw: int = 0
    """Number of the random draw: the same number gives the same augmentation."""
    view: View = View()
    delivery: SampleDelivery | None = None
    """The delivery to reproduce; None for a separate random draw."""


def scan_request(index: int, draw: int = 0) -> Request:
    """Return the request with which a scan reads a sample.

    Args:
        index: Dataset index of the sample.
        draw: 0 for the seed that all samples of a scan share, any other number for another one.
    """
    return Request(index, draw, View(scan=True))


class ReadSample(NamedTuple):
    """The result of a request."""

    content: str
    """JSON object: fields, or the error."""
    buffers: list[bytes]
    """Pictures and sounds, to which the fields refer by number."""
    seconds: float
    """Time that the dataset took for the sample."""
    cpu_seconds: float
    """CPU time that this took on the thread that called the dataset."""
    failed: bool = False
    end: int | None = None
    """Length of the stream if it ends before this sample, else None."""
    worker: int | None = None
    """Id of the explorer's worker that read the sample; None if no worker has returned it."""

    @property
    def nbytes(self) -> int:
        """Approximate memory that the result takes in this process."""
        return len(self.content) + sum(map(len, self.buffers))


class _OwnLoop:
    """The event loop of one worker thread, closed when the thread ends.

    Whatever a dataset keeps open, such as a connection, is bound to one loop.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def __del__(self) -> None:
        self.loop.close()


_local = threading.local()


def _event_loop() -> asyncio.AbstractEventLoop:
    if not hasattr(_local, "own"):
        _local.own = _OwnLoop()
    loop: asyncio.AbstractEventLoop = _local.own.loop
    return loop


async def _wait_for(sample: Awaitable[Any]) -> Any:
    return await sample


class SampleReader:
    """The dataset of the explorer's workers: returns descriptions of the samples of another dataset.

    Args:
        dataset: Map-style dataset.
        names: Class names, by field.
        renderers: User-defined renderers.
        normalization: The normalization to undo when pictures are drawn.
        hints: Kinds of fields, as the user states them.
        tokenizer: Turns token ids into text.
        root: Folder of the dataset's files.
        tabular: Whether the samples are the rows of a table.
    """

    def __init__(
        self,
        dataset: Any,
        names: Names,
        renderers: Sequence[Renderer],
        normalization: Normalization | None = None,
        *,
        hints: Hints | None = None,
        tokenizer: Any = None,
        root: str = "",
        tabular: bool = False,
    ) -> None:
        self._dataset = dataset
        self._names = names
        self._renderers = renderers
        self._normalization = normalization
        self._hints, self._tokenizer, self._root = hints or {}, tokenizer, root
        self._tabular = tabular
        self._kinds = tuple(KINDS)  # also those that were registered outside of this package, which no worker imports

    def __getitem__(self, request: Request) -> ReadSample:
        """Read a sample. The random generators are already seeded: each request is a task with its own seed.

        Raises:
            Exception: Only what a signal handler raised.
        """
        for index in () if request.delivery is None else request.delivery.before:  # they draw random numbers, too
            try:
                self._fetch(index)
            except Exception as error:  # as with `on_error`
                if raised_by_handler(error):
                    raise
        begin, cpu_begin = time.perf_counter(), time.thread_time()
        try:
            sample = self._fetch(request.index)
        except EndOfStreamError as error:
            return ReadSample("{}", [], 0.0, 0.0, end=error.length)
        except Exception as error:
            if raised_by_handler(error):
                raise
            seconds = time.perf_counter() - begin
            return ReadSample(error_content(error), [], seconds, time.thread_time() - cpu_begin, failed=True)
        seconds, cpu_seconds = time.perf_counter() - begin, time.thread_time() - cpu_begin
        description = describe(
            sample, self._names, self._renderers, request.view, self._normalization, self._kinds,
            hints=self._hints, tokenizer=self._tokenizer, root=self._root, tabular=self._tabular,
        )  # fmt: skip
        shown = description.fields if request.view.full else card_fields(description.fields)
        at = {id(field): place for place, field in enumerate(shown)}
        places = [at.get(id(field), -1) for field in description.fields]
        content = {
            "fields": [to_json(item) for item in shown],
            "cover": places[description.cover] if description.cover >= 0 else -1,
            "caption": [caption_text(description.fields[field]) for field in description.caption],
            "nbytes": description.nbytes,
            "left_out": description.left_out,
        }
        if request.index == WHOLE and isinstance(self._dataset, BatchSamples) and self._dataset.difference:
            content["difference"] = self._dataset.difference
        if description.check is not None:
            content["check"] = description.check._asdict()
        return ReadSample(json.dumps(content, allow_nan=False), description.buffers, seconds, cpu_seconds)

    def _fetch(self, index: int) -> Any:
        sample = self._dataset[index]
        if inspect.isawaitable(sample):  # `async def __getitem__`
            return _event_loop().run_until_complete(_wait_for(sample))
        return sample


def as_read(sample: ReadSample) -> ReadSample:
    """Return a sample unchanged: the `collate_fn` of the explorer's workers."""
    return sample


def error_content(error: BaseException) -> str:
    """Convert an exception to JSON: its text, its traceback, and the path of the file if it names one."""
    info = describe_error(error, by_value=False)
    path = next((value for name in PATH_NAMES if isinstance(value := getattr(error, name, None), str)), "")
    return failure(info.summary, info.traceback, path)


def failure(summary: str, details: str = "", path: str = "") -> str:
    """Return the content for a sample that cannot be shown, as JSON.

    Args:
        summary: One line.
        details: A traceback.
        path: Path of the file involved, if any.
    """
    kept = details if len(details) <= FULL_TEXT else details[:1000] + "\n...\n" + details[1000 - FULL_TEXT :]
    return json.dumps({"error": clean(summary, 400), "traceback": printable(kept), "path": clean(path)})
