"""`Explorer`: one source of samples, its views in the browser, and its Python interface."""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import json
import operator
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from IPython import get_ipython

from nbloader._util import rng
from nbloader._util.format import clean
from nbloader.errors import NbloaderError, ReplayError
from nbloader.explorer import static
from nbloader.explorer.batch_samples import WHOLE, BatchSamples, facts
from nbloader.explorer.fetcher import SampleFetcher, sample_seed
from nbloader.explorer.fields import Renderer, View
from nbloader.explorer.reader import ReadSample, Request
from nbloader.explorer.sources import Source, delivered, source_of
from nbloader.frontend import comm
from nbloader.frontend.live import Assets, LiveWidget, with_base, with_helpers
from nbloader.frontend.outputs import display, running_cell
from nbloader.workers.fetcher import is_async
from nbloader.workers.in_process import Delivery, as_in_worker

HERE = Path(__file__).parent
TEXT = "nbloader explorer"
"""The plain-text form. It is constant, so that executed notebooks can be compared."""
STATIC_PAUSE = 1.0
"""Seconds without news after which the static form is written."""
MAX_WANTED = 400
"""Samples that a view may have on screen."""
MAX_DRAWS = 16
"""Draws of one sample side by side."""
SCAN = "scan"
"""Stands for a view in the fetcher's queue."""
PUMP_INTERVAL = 0.1
"""Seconds between handling the messages of views during a scan, which blocks the main thread."""
MAX_ROWS = 200_000
"""Samples of which costs and values are kept."""
MAX_DELIVERED = 2000
"""Maximum length of the list of samples that a loader has delivered last."""


Row: TypeAlias = "dict[str, Any]"
"""What is known of a sample, see `Explorer.rows`."""


def styles() -> str:
    """The style sheet."""
    return with_base((HERE / "explorer.css").read_text("utf-8"))


ASSETS = Assets({"code": lambda: with_helpers(HERE / "explorer.js"), "styles": lambda: styles().encode()})


class Explorer:
    """Samples of a dataset or a loader in the browser; `nbloader.explore(x)` creates it.

    Args:
        x: See `nbloader.explore`.
        renderers: Of the user.
        num_workers: See `nbloader.explore`.
        workers: See `nbloader.explore`.
        seed: See `nbloader.explore`.
        buffer: See `nbloader.explore`.

    Raises:
        TypeError: `x` has no samples.
    """

    def __init__(
        self,
        x: Any,
        renderers: tuple[Renderer, ...] = (),
        *,
        num_workers: int,
        workers: str | None,
        seed: int,
        buffer: int,
    ) -> None:
        source = source_of(x, buffer)
        loader = source.loader
        self._loader = weakref.ref(loader) if loader is not None else lambda: None
        self._source: Source = dataclasses.replace(source, loader=None)
        self._total = self._source.total
        self._open_ended = self._source.streaming
        self._name = uuid.uuid4().hex[:12]
        self._shown_in: str | None = None
        self._shown = False
        self._selected: dict[int, None] = {}
        self._problem = ""
        self._notes: list[str] = [self._source.note] if self._source.note else []
        self._views: set[str] = set()
        self._draws: dict[Request, set[str]] = {}  # views that asked for this
        self._opened: int | None = None
        self._facts = ""
        """What a batch consists of, once a worker has made it."""
        self._rows: dict[int, Row] = {}  # by index
        self._filtered: list[int] = []
        self._on_screen: list[int] = []
        self._static_due = False
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        """Notified when a sample was read, and when none can be."""
        self._scanned: set[int] = set()  # what a scan reads: its cards are not sent
        self._closed = False

        self.widget = LiveWidget(ASSETS, TEXT)
        this = weakref.ref(self)
        self.widget.on_msg(lambda _widget, message, _buffers: _call(this, "_on_message", message))
        self._fetcher = SampleFetcher(
            self._source,
            renderers,
            num_workers=num_workers,
            kind=workers or self._source.workers,
            seed=seed,
            on_read=lambda request, sample: _call(this, "_on_read", request, sample),
            on_note=lambda text: _call(this, "_on_note", text),
            on_problem=lambda problem: _call(this, "_on_problem", problem),
        )
        # A function of its own: unregistering `pump` would unregister that of a dashboard.
        unregister = None if loader is None else loader.on_wait(lambda: comm.pump())  # noqa: PLW0108
        self._finalizer = weakref.finalize(self, _close, self._fetcher, self.widget, unregister)
        self._finalizer.atexit = False
        if self._source.fixed:
            self._fetcher.ask(Request(WHOLE))
        _explorers.add(self)
        _write_static_in_time()

    def __repr__(self) -> str:
        """The constant text."""
        return TEXT

    def __len__(self) -> int:
        """Number of samples; of a stream whose end is not known, how many can be seen."""
        return self._total

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != running_cell():
            self.show()

    def show(self) -> None:
        """Show the explorer below the running cell, as one more view of it."""
        self._shown, self._shown_in = True, running_cell()
        _shown.append(self)
        if self._closed:
            display(f"{self._name}-view", TEXT, {"text/html": self._static_html()})
            return
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        display(f"{self._name}-view", TEXT, {"application/vnd.jupyter.widget-view+json": view})
        display(f"{self._name}-static", TEXT, {"text/html": self._static_html()})

    # ---- what the user does in Python -------------------------------------------------------------------------------

    @property
    def selected(self) -> list[int]:
        """Dataset indices of the selected samples, in the order of selection. Can be assigned.

        Raises:
            IndexError: An index is not that of a sample.
        """
        with self._lock:
            return list(self._selected)

    @selected.setter
    def selected(self, indices: Iterable[int]) -> None:
        chosen = {int(index): None for index in indices}
        wrong = next((index for index in chosen if not 0 <= index < self._total), None)
        if wrong is not None:
            raise IndexError(f"there is no sample {wrong}: there are {self._total:,}, from 0")
        with self._lock:
            self._selected = chosen
        self._send({"kind": "selected", "indices": list(chosen)})

    def open(self, index: int) -> None:
        """Show a sample in full, in all views.

        Args:
            index: Its dataset index.

        Raises:
            IndexError: There is no such sample.
        """
        index = operator.index(index)
        if not 0 <= index < self._total:
            raise IndexError(f"there is no sample {index}: there are {self._total:,}, from 0")
        self._opened = index
        self._send({"kind": "show", "index": index})

    def good(self) -> Any:
        """The dataset without the selected samples, as a `torch.utils.data.Subset`.

        Raises:
            TypeError: The dataset is a stream, which has no indices.
        """
        if self._source.streaming:
            raise TypeError("a stream has no indices: skip the samples in its __iter__, or pass on_error to the loader")
        from torch.utils.data import Subset

        bad = set(self.selected)
        return Subset(self._source.original, [index for index in range(self._total) if index not in bad])

    @property
    def failed(self) -> list[int]:
        """Dataset indices of the samples that could not be read."""
        with self._lock:
            return [index for index, row in self._rows.items() if row["error"] is not None]

    def rows(self) -> list[Row]:
        """One row for each sample that was read or has failed (the last 200,000), in the order of their indices.

        Each is a dict with `index`, `seconds` and `cpu_seconds` (to read it), `nbytes`, `error` (None if it was read),
        and the fields of the sample by name: numbers, names of labels, and strings cut to one line. Any other field (an
        array, a picture) is a short string.
        """
        with self._lock:
            return [dict(self._rows[index]) for index in sorted(self._rows)]

    def to_pandas(self) -> Any:
        """`rows()` as a `pandas.DataFrame`, with the dataset index as its index.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=None if self._rows else ["index"]).set_index("index")

    def scan(self, count: int = 1000) -> int:
        """Read samples that are spread evenly over the dataset, for `rows()`, `costs()` and `filter()`.

        The call blocks. An interrupt ends it, and the samples that were read are kept. Views work meanwhile, and their
        samples are read first. Samples that were read before are not read again.

        Args:
            count: Number of samples.

        Returns:
            Number of samples for which there are rows now.

        Raises:
            NbloaderError: No sample can be read.
            TypeError: The dataset is a stream, which is read from its beginning.
        """
        if self._source.streaming:
            raise TypeError("a stream cannot be scanned: its samples are read from the beginning, as you scroll")
        chosen = np.unique(np.linspace(0, self._total - 1, min(count, self._total, MAX_ROWS)).astype(np.int64)).tolist()
        with self._lock:
            missing = [index for index in chosen if index not in self._rows]
            self._scanned = set(missing)
            self._problem = ""  # the dataset may have been repaired since
        try:
            for request, sample in self._fetcher.want(SCAN, missing):  # read before, but not in the list of rows
                self._on_read(request, sample)
            with self._news:
                while not (self._closed or self._problem or self._scanned <= self._rows.keys()):
                    self._news.wait(PUMP_INTERVAL)
                    comm.pump()
                if self._problem:
                    raise NbloaderError(json.loads(self._problem)["error"])
                return len(self._rows)
        finally:
            self._fetcher.forget(SCAN)
            with self._lock:
                self._scanned = set()

    def costs(self, by: str) -> list[Row]:
        """The cost of the samples that were read, by the value of a field; the most expensive value first.

        Args:
            by: The name of a field, such as "label".

        Returns:
            For each value a dict with `value`, `samples` (how many), `share_of_samples`, `share_of_time` and `seconds`
            (on average).

        Raises:
            KeyError: No sample that was read has this field.
        """
        groups: dict[Any, list[float]] = {}
        for row in self.rows():
            if by in row:
                groups.setdefault(row[by], []).append(row["seconds"])
        if not groups:
            raise KeyError(
                f"no sample that was looked at has a field {by!r}: view.rows() lists them, view.scan() reads more"
            )
        samples, seconds = sum(map(len, groups.values())), sum(map(sum, groups.values()))
        table = [
            {
                "value": value,
                "samples": len(times),
                "share_of_samples": len(times) / samples,
                "share_of_time": sum(times) / seconds if seconds else 0.0,
                "seconds": sum(times) / len(times),
            }
            for value, times in groups.items()
        ]
        return sorted(table, key=lambda line: -line["share_of_time"])

    def filter(self, function: Callable[[Row], object]) -> list[int]:
        """List only some of the samples that were read: `view.filter(lambda row: row["seconds"] > 0.1)`.

        Args:
            function: Gets a row as in `rows()`, and returns whether to list the sample. One that raises `KeyError` or
                `TypeError` for a row (a sample that failed has no fields) does not list it.

        Returns:
            The dataset indices.
        """
        found = []
        for row in self.rows():
            with contextlib.suppress(KeyError, TypeError):
                if function(row):
                    found.append(row["index"])
        with self._lock:
            self._filtered = found
        for view in list(self._views):
            self._on_order(view, {"name": "filtered"})
        return found

    def retry(self, indices: Iterable[int] | None = None) -> None:
        """Read samples again, with new workers and the dataset as it is now.

        Args:
            indices: Which samples; None for those that failed.
        """
        chosen = self.failed if indices is None else [int(index) for index in indices]
        with self._lock:
            for index in chosen:
                self._rows.pop(index, None)
        if isinstance(self._source.dataset, BatchSamples):
            self._source.dataset.forget()
        self._send({"kind": "again", "indices": chosen})
        self._fetcher.retry(chosen)

    @property
    def _debuggable(self) -> bool:
        """Whether a sample is the result of the dataset's own `__getitem__`."""
        source = self._source
        return source.dataset is source.original and not (source.streaming or is_async(source.dataset))

    def batch(self, epoch: int, batch: int) -> Explorer:
        """A batch of the loader: each of its samples as it was delivered, and types, shapes and bytes of the batch.

        Args:
            epoch: Number of the epoch, as in `BatchRecord.epoch`.
            batch: Number of the batch, as in `BatchRecord.index`.

        Returns:
            An explorer of its own, whose samples are numbered by their position in the batch. It is shown where a cell
            ends with it, or by `show()`.

        Raises:
            TypeError: This is not the explorer of an nbloader loader.
            ReplayError: The batch cannot be made again; see `DataLoader.replay`.
        """
        loader = self._loader()
        if loader is None:
            raise TypeError("batch() is for the explorer of a loader of nbloader that still exists: loader.explore()")
        explorer: Explorer = loader.replay(epoch, batch).explore()
        return explorer

    def debug(self, index: int, draw: int = 0, *, post_mortem: bool = False) -> None:
        """Read a sample in the debugger, in this process and with the seed that it has here: IPython's debugger or pdb.

        The prompt comes at the first line of the dataset's `__getitem__` and at the line that raises, as with
        `DataLoader.debug`, which makes a sample as it was delivered in a batch.

        Args:
            index: Its dataset index.
            draw: Which random draw.
            post_mortem: Whether the prompt comes only at the line that raises.

        Raises:
            TypeError: The dataset is a stream or asynchronous, or its `__getitem__` is not written in Python.
            ReplayError: `worker_init_fn` seeds a random generator.
        """
        from nbloader.workers import debugger  # imports pdb

        source = self._source
        stop_in = debugger.code_of(source.dataset, "__getitem__")
        if not (self._debuggable and stop_in):
            raise TypeError(
                f"{source.title} cannot be debugged by the index of a sample: it has no __getitem__ in Python"
            )
        request = Request(index, draw)
        process = self._fetcher.kind == "process"
        with as_in_worker(
            source.dataset, source.worker_init_fn, num_workers=self._fetcher.num_workers, base_seed=0, process=process
        ) as dataset:
            rng.seed_everything(sample_seed(self._fetcher.seed, request))
            debugger.debug(lambda: dataset[index], () if post_mortem else stop_in)

    def close(self) -> None:
        """End the workers and leave the static form. Closing twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._news.notify_all()
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join()
        if self._shown:
            display(f"{self._name}-view", TEXT, {"text/html": self._static_html()}, update=True)
            display(f"{self._name}-static", TEXT, {"text/html": ""}, update=True)
        self._finalizer()

    # ---- from views: on the main thread, on a subshell, or inside __next__ ------------------------------------------

    def _on_message(self, message: Mapping[str, Any]) -> None:
        if self._closed or self.widget.serve(message):
            return
        handler = self._handlers.get(str(message.get("kind")))
        if handler is not None:
            handler(self, str(message.get("view")), message)

    def _on_ready(self, view: str, _message: Mapping[str, Any]) -> None:
        self._views.add(view)
        self._send(self._state(), to=view)

    def _on_gone(self, view: str, _message: Mapping[str, Any]) -> None:
        self._views.discard(view)
        self._fetcher.forget(view)

    def _on_open(self, view: str, message: Mapping[str, Any]) -> None:
        slices = tuple((str(path), int(at)) for path, at in message["slices"].items())
        self._ask(view, Request(int(message["index"]), int(message["draw"]), View(True, slices)))

    def _on_draws(self, view: str, message: Mapping[str, Any]) -> None:
        index = int(message["index"])
        for delivery in reversed(self._deliveries(view, index)):
            self._ask(view, Request(index, delivery=delivery))
        for draw in reversed(range(min(int(message["count"]), MAX_DRAWS))):  # the last request is read first
            self._ask(view, Request(index, draw))

    def _deliveries(self, view: str, index: int) -> list[Delivery]:
        """The batches of the last epochs with a sample; also send them to a view."""
        loader, found, problem = self._loader(), list[Delivery](), ""
        if loader is None:
            return found
        try:
            found = loader.deliveries(index)
        except ReplayError as error:
            problem = clean(error, 400)
        batches = [[delivery.epoch, delivery.batch, delivery.position] for delivery in found]
        self._send({"kind": "delivered", "index": index, "batches": batches, "problem": problem}, to=view)
        return found

    def _on_select(self, _view: str, message: Mapping[str, Any]) -> None:
        self.selected = [index for index in message["indices"] if 0 <= index < self._total]

    def _on_give_up(self, _view: str, message: Mapping[str, Any]) -> None:
        self._fetcher.give_up(int(message["index"]))

    def _on_retry(self, _view: str, message: Mapping[str, Any]) -> None:
        self.retry([int(index) for index in message["indices"]])

    def _valid(self, indices: list[int]) -> list[int]:
        return [index for index in indices[:MAX_WANTED] if 0 <= index < self._total]

    def _on_want(self, view: str, message: Mapping[str, Any]) -> None:
        indices = self._valid(message["indices"])
        with self._lock:
            self._on_screen = sorted(self._valid(message["screen"]))
        there = self._fetcher.want(view, indices)
        if there:
            self._send_cards(there, to=view)
        self._plan_static()

    def _ask(self, view: str, request: Request) -> None:
        if not (0 <= request.index < self._total or (request.index == WHOLE and self._source.fixed)):
            return
        with self._lock:
            self._draws.setdefault(request, set()).add(view)
        sample = self._fetcher.ask(request)
        if sample is not None:
            self._answer(request, sample)

    def _on_order(self, view: str, message: Mapping[str, Any]) -> None:
        """Send the list of samples that a view shows instead of all."""
        name = message["name"]
        with self._lock:
            rows = dict(self._rows)
            filtered = list(self._filtered)
        if name == "selected":
            indices = self.selected
        elif name == "failed":
            indices = sorted(self.failed)
        elif name == "slowest":
            indices = sorted(rows, key=lambda index: -rows[index]["seconds"])
        elif name == "filtered":
            indices = filtered
        elif name == "delivered":
            indices = [i for i in delivered(self._loader(), MAX_DELIVERED) if 0 <= i < self._total]
        else:
            return
        buffer = np.asarray(indices, np.float64).tobytes()  # what JavaScript reads exactly
        self._send({"kind": "order", "name": name, "length": len(indices)}, [buffer], to=view)

    _handlers: ClassVar[Mapping[str, Callable[[Explorer, str, Mapping[str, Any]], None]]] = {
        "ready": _on_ready,
        "gone": _on_gone,
        "want": _on_want,
        "open": _on_open,
        "draws": _on_draws,
        "order": _on_order,
        "select": _on_select,
        "give_up": _on_give_up,
        "retry": _on_retry,
    }
    """By the kind of message from a view."""

    def _state(self) -> dict[str, Any]:
        with self._lock:
            return {
                "kind": "state",
                "id": self._name,
                "title": self._source.title,
                "total": self._total,
                "streaming": self._open_ended,
                "debuggable": self._debuggable,
                "fixed": self._source.fixed,
                "selected": list(self._selected),
                "loader": self._loader() is not None,
                "notes": [note for note in (self._facts, *self._notes) if note],
                "problem": json.loads(self._problem) if self._problem else None,
                "opened": self._opened,
            }

    # ---- from the fetcher's thread ----------------------------------------------------------------------------------

    def _on_read(self, request: Request, sample: ReadSample) -> None:
        if sample.end is not None:
            with self._lock:
                ends, self._open_ended = self._open_ended, False
                self._total = min(self._total, sample.end)
                self._draws.pop(request, None)
            if ends:
                self._send(self._state())
            return
        if request.index == WHOLE and not request.view.full:
            self._facts = facts(json.loads(sample.content))
            self._send(self._state())
            return
        with self._lock:
            if request == Request(request.index):
                self._rows.pop(request.index, None)
                self._rows[request.index] = _row(request.index, sample)
                if len(self._rows) > MAX_ROWS:
                    del self._rows[next(iter(self._rows))]
                self._news.notify_all()
            scanned = request.index in self._scanned and request.index not in self._on_screen
            asked = request in self._draws
        if not (request.view.full or request.draw or request.delivery or scanned):
            self._send_cards([(request, sample)])
            self._plan_static()
        if asked:
            self._answer(request, sample)

    def _on_note(self, text: str) -> None:
        self._notes.append(text)
        self._send(self._state())

    def _on_problem(self, problem: str) -> None:
        if problem != self._problem:
            with self._news:
                self._problem = problem
                self._news.notify_all()
            self._send(self._state())

    def _answer(self, request: Request, sample: ReadSample) -> None:
        """Send a sample to the views that asked for it."""
        with self._lock:
            views = self._draws.pop(request, set())
        for view in views:
            kind = "sample" if request.view.full else "draw"
            content = _content(request, sample, 0)
            self._send({"kind": kind, **content}, sample.buffers, to=view)

    def _send_cards(self, cards: list[tuple[Request, ReadSample]], to: str | None = None) -> None:
        contents, buffers = [], list[bytes]()
        for request, sample in cards:
            contents.append(_content(request, sample, len(buffers)))
            buffers += sample.buffers
        self._send({"kind": "cards", "cards": contents}, buffers, to=to)

    def _send(self, message: dict[str, Any], buffers: list[bytes] | None = None, *, to: str | None = None) -> None:
        if not self._closed and (self._views or to is not None):
            self.widget.send(message if to is None else {**message, "to": to}, buffers=buffers)

    # ---- the static form --------------------------------------------------------------------------------------------

    def _plan_static(self) -> None:
        """Write the static form soon, once no more samples arrive."""
        with self._lock:
            self._static_due = True
            if self._closed or not self._shown:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(STATIC_PAUSE, _call, (weakref.ref(self), "write_static"))
            self._timer.daemon = True
            self._timer.name = "nbloader-explorer-static"
            self._timer.start()

    def write_static(self) -> None:
        """Save what is on screen in the notebook, so that it is visible without the kernel."""
        with self._lock:
            if self._closed or not (self._static_due and self._shown):
                return
            self._static_due = False
        display(f"{self._name}-static", TEXT, {"text/html": self._static_html()}, update=True)

    def _static_html(self) -> str:
        with self._lock:
            indices, total = self._on_screen, self._total
        cards = [(request.index, sample) for request, sample in self._fetcher.there(indices)]
        return static.html(self._name, styles(), self._source.title, total, cards)


def _row(index: int, sample: ReadSample) -> Row:
    """What is known of a sample. Its own fields cannot replace the first ones."""
    content = json.loads(sample.content)
    values = {
        field["path"] or "value": field.get("value", field["summary"])
        for field in content.get("fields", ())
        if field["kind"] != "none"
    }
    known = {
        "index": index,
        "seconds": sample.seconds,
        "cpu_seconds": sample.cpu_seconds,
        "nbytes": content.get("nbytes"),
        "error": content.get("error"),
    }
    return {**known, **values, **known}


def _content(request: Request, sample: ReadSample, first_buffer: int) -> dict[str, Any]:
    """A sample as a message.

    Args:
        request: What was asked for.
        sample: What was read.
        first_buffer: Number of its first buffer in the message.
    """
    return {
        **json.loads(sample.content),
        "index": request.index,
        "draw": request.draw,
        "delivery": None if request.delivery is None else [request.delivery.epoch, request.delivery.batch],
        "seconds": sample.seconds,
        "cpu_seconds": sample.cpu_seconds,
        "first": first_buffer,
    }


def _call(ref: weakref.ref[Explorer], method: str, *arguments: Any) -> None:
    """Call a method of an explorer that may be gone."""
    explorer = ref()
    if explorer is not None:
        getattr(explorer, method)(*arguments)


def _close(fetcher: SampleFetcher, widget: LiveWidget, unregister: Callable[[], None] | None) -> None:
    if unregister is not None:
        unregister()
    fetcher.close()
    widget.close()


_explorers: weakref.WeakSet[Explorer] = weakref.WeakSet()
_shown: collections.deque[Explorer] = collections.deque(maxlen=8)
"""Those that were shown last: they live as long as their views, also if no variable refers to them."""


@cache
def _write_static_in_time() -> None:
    """Write static forms that are due before a cell ends, and before the kernel exits."""
    shell = get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", _write_static)
    atexit.register(_write_static)


def _write_static(_result: object = None) -> None:
    for explorer in list(_explorers):
        explorer.write_static()
