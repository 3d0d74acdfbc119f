"""The conversation of an explorer with its views: what they show in common, messages from them, and messages to them.

    view -> {"kind": "want", ...} -> `_on_want` -> SampleFetcher -> `_on_read` -> {"kind": "cards", ...} -> view
    `arrange`, `select`, ... change what all views show -> {"kind": "order", ...}, {"kind": "selected", ...} -> views

Messages arrive on the main thread, on a subshell of the kernel, or inside a blocked `__next__`. Samples arrive on the
fetcher's thread.
"""

from __future__ import annotations

import contextlib
import json
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nbloader._util.current_class import with_current_class
from nbloader._util.format import clean
from nbloader._util.weak import weakly
from nbloader.errors import ReplayError
from nbloader.explorer.arrangement import MAX_NOTES, Arrangement, Listed
from nbloader.explorer.batch_samples import WHOLE, BatchSamples, facts
from nbloader.explorer.cell_output import FIRST, CellOutput
from nbloader.explorer.embedding import Embedding
from nbloader.explorer.fetcher import SampleFetcher
from nbloader.explorer.problems import KINDS
from nbloader.explorer.reader import ReadSample, Request, scan_request
from nbloader.explorer.scan import spread
from nbloader.explorer.scanning import Scanning
from nbloader.explorer.sources import FollowedLoader, Source, delivered
from nbloader.explorer.table import MAX_ROWS, Group, SampleTable
from nbloader.explorer.view import View
from nbloader.frontend import comm
from nbloader.frontend.live import LiveWidget
from nbloader.workers.in_process import SampleDelivery

BEGIN = "begin"
"""The name, in the fetcher's queue, of a view that is being opened."""
MAX_WANTED = 400
"""Maximum number of samples that a view may have on screen."""
MAX_DRAWS = 16
"""Maximum number of draws of one sample that are shown side by side."""
MAX_NESTED = 8
"""Maximum depth of nested datasets, as with a `Subset`."""
MAX_DELIVERED = 2000
"""Maximum length of the list of samples that a loader has delivered most recently."""


class Conversation:
    """The views of one explorer: what all of them show, and the messages from and to them.

    `close()` stops the workers, and so does garbage collection: the widget, the fetcher and the loader, which call its
    methods, do not keep it alive.

    Args:
        widget: The widget, of which each view in the browser is a view.
        source: The samples.
        loader: Returns the loader that they belong to; None if there is none, or if it was garbage-collected.
        table: Gets facts about the samples that are read.
        create_fetcher: Creates the fetcher from its callbacks `on_read`, `on_note` and `on_problem`.
        notes: Lines of text about the source.
    """

    def __init__(
        self,
        widget: LiveWidget,
        source: Source,
        loader: Callable[[], FollowedLoader | None],
        table: SampleTable,
        create_fetcher: Callable[..., SampleFetcher],
        notes: Iterable[str],
    ) -> None:
        self._source, self._loader, self._table = source, loader, table
        self._total = source.total
        self._open_ended = source.streaming
        self._selected: dict[int, None] = {}
        self._opened: int | None = None
        self._problem = ""
        self._notes = list(notes)
        self._facts = ""
        """What a batch consists of, once a worker has made it."""
        self._arrangement, self._arranged = Arrangement(), Listed(np.empty(0, np.int64), {}, [])
        self._by_function = False
        """Whether a call has chosen what is listed that is not known as code."""
        self._embedding: Embedding | None = None
        self._views: set[str] = set()
        self._draws: dict[Request, set[str]] = {}  # the views that requested each sample
        self._closed = False
        self._lock = threading.RLock()

        self.widget = widget
        on_message = weakly(self._on_message)
        self.widget.on_msg(lambda _widget, message, _buffers: on_message(message))
        self.fetcher = create_fetcher(
            on_read=weakly(self._on_read), on_note=weakly(self._on_note), on_problem=weakly(self._on_problem)
        )
        """Reads the samples."""
        self.output = CellOutput(source.title, source.total, self.fetcher)
        """What the cells that show the explorer have below them."""
        self._scanning = Scanning(table, self.fetcher)
        followed = loader()
        unregister = None if followed is None else followed.on_wait(weakly(self._in_the_loop))
        self._finalizer = weakref.finalize(self, _close, self.fetcher, self.widget, unregister)
        self._finalizer.atexit = False
        if source.fixed:
            self.fetcher.ask(Request(WHOLE))

    # ---- from the notebook ------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Number of samples; for a stream whose end is not known, the most that can be shown."""
        return self._total

    @property
    def selected(self) -> list[int]:
        """Dataset indices of the selected samples, in the order of selection."""
        with self._lock:
            return list(self._selected)

    @property
    def arrangement(self) -> Arrangement:
        """What was chosen to be listed, as far as it is known as code."""
        return self._arrangement

    def begin(self) -> None:
        """Read the first samples, while the page loads a view."""
        self.widget.reopen()
        self.fetcher.want(BEGIN, range(min(FIRST, self._total)))

    def select(self, indices: Iterable[int]) -> None:
        """Select these samples and no others.

        Raises:
            IndexError: One of the indices is out of range.
        """
        chosen = {int(index): None for index in indices}
        self._check(chosen)
        with self._lock:
            self._selected = chosen
        self._send({"kind": "selected", "indices": list(chosen)})

    def open_sample(self, index: int) -> None:
        """Show a sample in full.

        Raises:
            IndexError: There is no such sample.
        """
        index = operator.index(index)
        self._check([index])
        self._opened = index
        self._send({"kind": "show", "index": index})

    def _check(self, indices: Iterable[int]) -> None:
        wrong = next((index for index in indices if not 0 <= index < self._total), None)
        if wrong is not None:
            raise IndexError(f"there is no sample {wrong}. The samples are numbered from 0 to {self._total - 1:,}.")

    def arrange(self, arrangement: Arrangement) -> Listed:
        """List samples.

        Returns:
            The samples.

        Raises:
            KeyError: A column does not exist, or cannot be used so.
        """
        listed = arrangement.listed(self._table)
        self._choose(arrangement, listed, by_function=False)
        self._list_chosen()
        return listed

    def list_found(self, listed: Listed) -> None:
        """List samples that a call has found, in a way that is not known as code."""
        self._choose(Arrangement(), listed, by_function=True)
        self._list_chosen()

    def _choose(self, arrangement: Arrangement, listed: Listed, *, by_function: bool) -> None:
        with self._lock:
            self._arrangement, self._arranged, self._by_function = arrangement, listed, by_function

    def _list_chosen(self) -> None:
        """Show in all views what was chosen in Python, and how it was chosen."""
        with self._lock:
            chosen = self._arrangement._replace(filters={})._asdict()
        for view in list(self._views):
            self._send_order(view, "filtered", chosen)

    def code(self) -> str:
        """Return the present selection, filters and order as Python; see `Explorer.code`."""
        with self._lock:
            lines = ["# view.filter() or view.similar() was called: repeat that call here"] if self._by_function else []
            lines += self._arrangement.code()
            if self._selected:
                lines.append(f"view.selected = {list(self._selected)}")
        return "\n".join(lines)

    def plot(self, embedding: Embedding) -> None:
        """Show a map, whose columns the table has."""
        self._embedding = embedding
        self._send(self._state())
        self._send(_plot(embedding))

    def list_similar(self, index: int, count: int = 50) -> dict[int, float]:
        """List the samples whose vectors are most similar to that of a sample; see `Explorer.similar`.

        Raises:
            KeyError: The sample has no vector.
        """
        if self._embedding is None:
            raise KeyError("no sample has a vector yet. Call view.embed() first.")
        found = self._embedding.similar(operator.index(index), count)
        notes = {other: f"{cosine:.3f} similar to {index}" for other, cosine in found.items()}
        self.list_found(Listed(np.array([index, *found], np.int64), notes, []))
        return found

    def refresh(self, indices: Iterable[int] = ()) -> None:
        """Have views request these samples again, and histograms."""
        self._send({"kind": "again", "indices": list(indices)})

    def retry(self, indices: list[int]) -> None:
        """Read samples again, with new workers and the dataset as it is now; see `Explorer.retry`.

        Raises:
            TypeError: The dataset cannot take the new definition of its class.
        """
        part = self._source.original
        for _ in range(MAX_NESTED):  # the dataset and, for a Subset, the inner one
            with_current_class(part)
            part = getattr(part, "dataset", None)
        scanned = [index for index in indices if self._table.checked(index)]
        self._table.drop(indices)
        if isinstance(self._source.dataset, BatchSamples):
            self._source.dataset.forget()
        self.refresh(indices)
        self.fetcher.retry(indices)
        self.fetcher.scan(scanned)

    def begin_scan(self, count: int) -> None:
        """Begin to read samples that are spread evenly over the dataset."""
        chosen = spread(min(count, MAX_ROWS), self._total)
        with self._lock:
            self._problem = ""  # the dataset may have been repaired since
            self._scanning.begin(chosen)
        self._feed_scan()

    def wait_for_scan(self) -> str:
        """Block until the scan has ended, and handle messages meanwhile.

        Returns:
            Why no sample can be read; "" if samples can be read.
        """
        self._scanning.wait()
        problem = self._problem
        return str(json.loads(problem)["error"]) if problem else ""

    def end_scan(self) -> None:
        """End the scan, if one is running."""
        if self._scanning.stop():
            self._send({"kind": "scan", "scan": None})

    def _feed_scan(self) -> None:
        """Request the next samples of a scan, and send its progress to the views."""
        if self._scanning.feed():
            self._send({"kind": "scan", "scan": self._scanning.progress()})

    def close(self) -> None:
        """Stop the workers, and replace the views by the static form. Closing twice is a no-op."""
        self._closed = True
        self._scanning.close()
        self.output.close()
        self._finalizer()

    # ---- from views: on the main thread, on a subshell, or inside __next__ ------------------------------------------

    def _in_the_loop(self) -> None:
        """Handle clicks while the loader's loop waits."""
        comm.pump()
        self.output.looked(closed=self.widget.closed)

    def _on_message(self, message: Mapping[str, Any]) -> None:
        self.output.heard()
        if self._closed:
            return
        handler = self._handlers.get(str(message.get("kind")))
        if handler is not None:
            handler(self, str(message.get("view")), message)

    def _on_ready(self, view: str, _message: Mapping[str, Any]) -> None:
        self._views.add(view)
        self._send(self._state(), to=view)
        if self._embedding is not None:
            self._send(_plot(self._embedding), to=view)
        first = self.fetcher.there(range(min(FIRST, self._total)))
        if first:  # read while the page loaded the view
            self._send_cards(first, to=view)

    def _on_gone(self, view: str, _message: Mapping[str, Any]) -> None:
        self._views.discard(view)
        self.fetcher.forget(view)

    def _on_open(self, view: str, message: Mapping[str, Any]) -> None:
        choices = tuple((str(path), int(chosen)) for path, chosen in message["choices"].items())
        self._ask(view, Request(int(message["index"]), int(message["draw"]), View(full=True, choices=choices)))

    def _on_draws(self, view: str, message: Mapping[str, Any]) -> None:
        index = int(message["index"])
        for delivery in reversed(self._deliveries(view, index)):
            self._ask(view, Request(index, delivery=delivery))
        for draw in reversed(range(min(int(message["count"]), MAX_DRAWS))):  # the last request is read first
            self._ask(view, Request(index, draw))

    def _deliveries(self, view: str, index: int) -> list[SampleDelivery]:
        """Find the batches of the last epochs that contain a sample, and send them to a view."""
        loader, found, problem = self._loader(), list[SampleDelivery](), ""
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
        self.select(index for index in message["indices"] if 0 <= index < self._total)

    def _on_give_up(self, _view: str, message: Mapping[str, Any]) -> None:
        self.fetcher.give_up(int(message["index"]))

    def _on_retry(self, _view: str, message: Mapping[str, Any]) -> None:
        if "problem" in message:
            indices = list(self._listed(message["problem"]))
        else:
            indices = [int(index) for index in message["indices"]]
        try:
            self.retry(indices)
        except TypeError as error:
            self._on_note(clean(error, 400))

    def _on_scan(self, _view: str, message: Mapping[str, Any]) -> None:
        action = message["action"]
        if action == "start" and not self._source.streaming:
            self.begin_scan(int(message["count"]))
        elif action == "stop":
            self.end_scan()
        elif action in ("pause", "resume"):
            self._scanning.pause(paused=action == "pause")
            self._feed_scan()

    def _on_stats(self, view: str, message: Mapping[str, Any]) -> None:
        content, buffers = self._table.statistics(
            message["filters"], str(message["x"]), str(message["y"]), str(message["by"])
        )
        rows, columns = (str(name) for name in message.get("pair", ("", "")))
        if rows and columns:
            with contextlib.suppress(KeyError):  # a column of the last request was removed since
                content["confusion"] = self._table.confusion(rows, columns)._asdict()
        self._send({"kind": "stats", **content}, buffers, to=view)

    def _on_filter(self, view: str, message: Mapping[str, Any]) -> None:
        arrangement = Arrangement.of(message)
        try:
            listed = arrangement.listed(self._table)
        except KeyError as error:
            self._on_note(clean(error.args[0], 400))
            return
        self._choose(arrangement, listed, by_function=False)
        self._send_order(view, "filtered")

    def _on_similar(self, _view: str, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(KeyError):
            self.list_similar(int(message["index"]))

    def _on_lasso(self, view: str, message: Mapping[str, Any]) -> None:
        """Select the samples inside of a polygon in the scatter plot, and list them."""
        self.select(self._table.within(str(message["x"]), str(message["y"]), message["corners"]))
        self._send_order(view, "selected")

    def _on_columns(self, view: str, _message: Mapping[str, Any]) -> None:
        """Send the names by which samples can be sorted and grouped."""
        content = {"sortable": self._table.sortable(), "groupable": self._table.groupable()}
        self._send({"kind": "columns", **content}, to=view)

    def _on_code(self, view: str, _message: Mapping[str, Any]) -> None:
        self._send({"kind": "code", "text": self.code()}, to=view)

    def _listed(self, kind: str) -> Mapping[int, str]:
        """Return the samples with a kind of problem, each with a description."""
        return next((self._table.listed(known) for known in KINDS if known == kind), {})

    def _valid(self, indices: list[int]) -> list[int]:
        return [index for index in indices[:MAX_WANTED] if 0 <= index < self._total]

    def _on_want(self, view: str, message: Mapping[str, Any]) -> None:
        self.output.scrolled(self._valid(message["screen"]))
        there = self.fetcher.want(view, self._valid(message["indices"]))
        if there:
            self._send_cards(there, to=view)
        self.output.plan()

    def _ask(self, view: str, request: Request) -> None:
        if not (0 <= request.index < self._total or (request.index == WHOLE and self._source.fixed)):
            return
        with self._lock:
            self._draws.setdefault(request, set()).add(view)
        sample = self.fetcher.ask(request)
        if sample is not None:
            self._answer(request, sample)

    def _on_order(self, view: str, message: Mapping[str, Any]) -> None:
        if message["name"] == "all":  # nothing is filtered, sorted or grouped: the view knows the list itself
            self._choose(Arrangement(), Listed(np.empty(0, np.int64), {}, []), by_function=False)
        self._send_order(view, str(message["name"]))

    def _send_order(self, view: str, name: str, chosen: Mapping[str, Any] | None = None) -> None:
        """Send the list of samples that a view shows instead of all samples.

        Args:
            view: The view.
            name: Name of the list.
            chosen: Words, sorting and groups that the view does not know, since they were chosen in Python.
        """
        with self._lock:
            listed = self._arranged
        notes: Mapping[int, str] = {}
        groups: list[Group] = []
        indices: list[int] | NDArray[np.int64]
        if name == "selected":
            indices = self.selected
        elif name in KINDS:
            notes = self._listed(name)
            indices = list(notes)
        elif name == "slowest":
            indices = self._table.slowest()
        elif name == "filtered":
            indices, notes, groups = listed
        elif name == "delivered":
            indices = [i for i in delivered(self._loader(), MAX_DELIVERED) if 0 <= i < self._total]
        else:
            return
        buffer = np.asarray(indices, np.float64).tobytes()  # JavaScript reads float64 exactly
        shown = {index: clean(notes[index], 300) for index in list(notes)[:MAX_NOTES]} if name != "failed" else {}
        content = {
            "name": name,
            "length": len(indices),
            "notes": shown,
            "groups": [_heading(group) for group in groups],
            "chosen": chosen,
        }
        self._send({"kind": "order", **content}, [buffer], to=view)

    _handlers: ClassVar[Mapping[str, Callable[[Conversation, str, Mapping[str, Any]], None]]] = {
        "ready": _on_ready,
        "gone": _on_gone,
        "want": _on_want,
        "open": _on_open,
        "draws": _on_draws,
        "order": _on_order,
        "select": _on_select,
        "give_up": _on_give_up,
        "retry": _on_retry,
        "scan": _on_scan,
        "stats": _on_stats,
        "filter": _on_filter,
        "columns": _on_columns,
        "code": _on_code,
        "similar": _on_similar,
        "lasso": _on_lasso,
    }
    """Handlers by the kind of message from a view."""

    def _state(self) -> dict[str, Any]:
        with self._lock:
            return {
                "kind": "state",
                "id": self.output.name,
                "title": self._source.title,
                "total": self._total,
                "streaming": self._open_ended,
                "debuggable": self._source.debuggable,
                "fixed": self._source.fixed,
                "tabular": self._source.tabular,
                "selected": list(self._selected),
                "loader": self._loader() is not None,
                "notes": [note for note in (self._facts, *self._notes) if note],
                "problem": json.loads(self._problem) if self._problem else None,
                "opened": self._opened,
                "scanning": self._scanning.progress(),
                "embedded": self._embedding is not None,
            }

    # ---- from the fetcher's thread ----------------------------------------------------------------------------------

    def _on_read(self, samples: list[tuple[Request, ReadSample]]) -> None:
        cards = []
        for request, sample in samples:
            if sample.end is not None:
                self._on_end(request, sample.end)
            elif request.index == WHOLE and not request.view.full:
                self._facts = facts(json.loads(sample.content))
                self._send(self._state())
            else:
                if request == scan_request(request.index, request.draw) and request.draw:
                    self._on_probed(request.index, sample)
                    continue
                is_card = request == Request(request.index)
                if is_card or request.view.scan:
                    self._table.add(request.index, sample)
                if request.view.scan:
                    self._on_scanned(request.index)
                    continue
                if is_card:
                    cards.append((request, sample))
                with self._lock:
                    asked = request in self._draws
                if asked:
                    self._answer(request, sample)
        if cards:
            self._send_cards(cards)
            self.output.plan()

    def _on_end(self, request: Request, length: int) -> None:
        """Handle a request for a sample beyond the end of a stream, which has `length` samples."""
        with self._lock:
            ends, self._open_ended = self._open_ended, False
            self._total = self.output.total = min(self._total, length)
            self._draws.pop(request, None)
        if ends:
            self._send(self._state())

    def _on_scanned(self, index: int) -> None:
        self._scanning.finish(index)
        self._feed_scan()

    def _on_probed(self, index: int, sample: ReadSample) -> None:
        """Handle a sample that a scan has read under a seed of its own."""
        found = self._table.add_probe(index, sample)
        if found:
            self._on_note(found)
        self._feed_scan()

    def _on_note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
        self._send(self._state())

    def _on_problem(self, problem: str) -> None:
        if problem != self._problem:
            with self._lock:
                self._problem = problem
                if problem:
                    self._scanning.abandon()
            self._send(self._state())

    def _answer(self, request: Request, sample: ReadSample) -> None:
        """Send a sample to the views that requested it."""
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


def _plot(embedding: Embedding) -> dict[str, Any]:
    """Return the message that has a view plot a map."""
    return {"kind": "plot", "x": f"{embedding.name} x", "y": f"{embedding.name} y"}


def _heading(group: Group) -> dict[str, Any]:
    """Return the heading of a group as JSON values."""
    return {"name": group.name, "size": group.size, "listed": len(group.indices), "filters": group.filters}


def _close(fetcher: SampleFetcher, widget: LiveWidget, unregister: Callable[[], None] | None) -> None:
    if unregister is not None:
        unregister()
    fetcher.close()
    widget.close()


def _content(request: Request, sample: ReadSample, first_buffer: int) -> dict[str, Any]:
    """Convert a sample to a message.

    Args:
        request: What was requested.
        sample: What was read.
        first_buffer: Index of the sample's first buffer in the message.
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
