"""`Explorer`: one source of samples, its views in the browser, and its Python interface."""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import json
import operator
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
from IPython import get_ipython

from nbloader._util import rng
from nbloader._util.current_class import with_current_class
from nbloader._util.format import clean
from nbloader._util.threads import in_this_context
from nbloader.errors import NbloaderError, ReplayError
from nbloader.explorer import static
from nbloader.explorer.arrangement import EACH, Arrangement, Listed
from nbloader.explorer.assets import ASSETS, styles
from nbloader.explorer.batch_samples import WHOLE, BatchSamples, facts
from nbloader.explorer.describer import Renderer
from nbloader.explorer.embedding import Embedding, Method
from nbloader.explorer.fetcher import SampleFetcher, sample_seed
from nbloader.explorer.normalization import Normalization, declared
from nbloader.explorer.own_columns import OwnColumn
from nbloader.explorer.problems import KINDS, Found
from nbloader.explorer.reader import ReadSample, Request, scan_request
from nbloader.explorer.scan import Scan
from nbloader.explorer.sources import Source, delivered, source_of
from nbloader.explorer.table import MAX_ROWS, Group, Row, SampleTable
from nbloader.explorer.versions import Versions, renewed
from nbloader.explorer.view import View
from nbloader.frontend import comm
from nbloader.frontend.live import LiveWidget
from nbloader.frontend.outputs import display, display_widget, html_for_marimo, running_cell
from nbloader.frontend.silence import Silence, advice
from nbloader.workers.fetcher import is_async
from nbloader.workers.in_process import SampleDelivery, as_in_worker
from nbloader.workers.seeding import Seeding

TEXT = "nbloader explorer"
"""The plain-text form. It is constant, so that executed notebooks can be compared."""
STATIC_PAUSE = 1.0
"""Seconds without new samples after which the static form is written."""
BEGIN, FIRST = "begin", 24
"""The name, in the fetcher's queue, of a view that is being opened, and the number of samples to read for it."""
CALLS = (
    "In place of the view, with <code>view = nbloader.explore(...)</code>: <code>view.rows()</code>,"
    ' <code>view.costs("label")</code>, <code>view.scan()</code> and <code>view.problems()</code>;'
    " <code>dataset[i]</code> is a sample. Below are the first ones."
)
"""What to use in place of the live view, as HTML."""
CLASS_WORDS = ("label", "class", "target", "pred")
"""Words in the name of a column whose whole numbers may be classes."""
EMBEDDED = 1000
"""Number of samples that a function embeds if none are selected."""
MAX_WANTED = 400
"""Maximum number of samples that a view may have on screen."""
MAX_DRAWS = 16
"""Maximum number of draws of one sample that are shown side by side."""
PUMP_INTERVAL = 0.1
"""Interval, in seconds, at which messages of views are handled during a scan, which blocks the main thread."""
SCAN_INTERVAL = 0.25
"""Seconds between two messages about the progress of a scan."""
MAX_NOTES = 2000
"""Maximum number of samples in a list that come with the reason why they are listed."""
MAX_NESTED = 8
"""Maximum depth of nested datasets, as with a `Subset`."""
MAX_DELIVERED = 2000
"""Maximum length of the list of samples that a loader has delivered most recently."""


class Explorer:
    """Samples of a dataset or a loader in the browser; `nbloader.explore(x)` creates it.

    Args:
        x: See `nbloader.explore`.
        renderers: User-defined renderers.
        num_workers: See `nbloader.explore`.
        workers: See `nbloader.explore`.
        seed: See `nbloader.explore`.
        buffer: See `nbloader.explore`.
        normalization: See `nbloader.explore`.
        kinds: See `nbloader.explore`.
        tokenizer: See `nbloader.explore`.
        split: See `nbloader.explore`.

    Raises:
        TypeError: `x` has no samples.
        ValueError: There is no such split.
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
        normalization: tuple[Any, Any] | Literal[False] | None = None,
        kinds: Mapping[str, str] | None = None,
        tokenizer: Any = None,
        split: str | int | None = None,
    ) -> None:
        source = source_of(x, buffer, split)
        if tokenizer is not None:
            source = dataclasses.replace(source, tokenizer=tokenizer)
        self._normalization, self._renderers = normalization, renderers
        undone = _normalization(normalization, source.original)
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
        if undone is not None:
            self._notes.append(f"Pictures are shown without their normalization ({undone}).")
        self._views: set[str] = set()
        self._draws: dict[Request, set[str]] = {}  # the views that requested each sample
        self._opened: int | None = None
        self._facts = ""
        """What a batch consists of, once a worker has made it."""
        self._table = SampleTable()
        self._arrangement, self._arranged = Arrangement(), Listed([], {}, [])
        self._embedding: Embedding | None = None
        self._by_function = False
        """Whether a call has chosen what is listed that is not known as code."""
        self._on_screen: list[int] = []
        self._silence = Silence()
        self._static_due, self._static_at = False, 0.0  # whether and when to write the static form
        self._timing = False  # whether the timer that checks this is running
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        """Notified when a sample has been read, or when no sample can be read."""
        self._scan: Scan | None = None
        self._scan_shown = 0.0
        self._closed = False

        self.widget = LiveWidget(ASSETS, TEXT)
        this = weakref.ref(self)
        self.widget.on_msg(lambda _widget, message, _buffers: _call(this, "_on_message", message))
        self._fetcher = SampleFetcher(
            self._source,
            renderers,
            undone,
            kinds,
            num_workers=num_workers,
            kind=workers or self._source.workers,
            seed=seed,
            on_read=lambda samples: _call(this, "_on_read", samples),
            on_note=lambda text: _call(this, "_on_note", text),
            on_problem=lambda problem: _call(this, "_on_problem", problem),
        )
        unregister = None if loader is None else loader.on_wait(lambda: _call(this, "_in_the_loop"))
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
        """Return the number of samples; for a stream of unknown length, the most that can be shown."""
        return self._total

    def _ipython_display_(self) -> None:
        if self._shown_in is None or self._shown_in != running_cell():
            self.show()

    def _display_(self) -> Any:
        """Return what marimo shows for the last line of a cell."""
        self._keep_shown()
        if self._closed:
            return html_for_marimo(self._static_html())
        self._begin()
        return self.widget

    def show(self) -> None:
        """Show the explorer below the running cell, as an additional view."""
        self._shown_in = running_cell()
        self._keep_shown()
        if self._closed:
            display(f"{self._name}-view", TEXT, {"text/html": self._static_html()})
            return
        self._begin()
        display_widget(f"{self._name}-view", TEXT, self.widget)
        this = weakref.ref(self)
        self._silence.shown(lambda: _call(this, "_on_silence"))
        display(f"{self._name}-static", TEXT, {"text/html": self._static_html()})

    def _keep_shown(self) -> None:
        self._shown = True
        _shown.append(self)

    def _begin(self) -> None:
        """Read the first samples, while the page loads the view."""
        self.widget.reopen()
        self._fetcher.want(BEGIN, range(min(FIRST, self._total)))

    def _in_the_loop(self) -> None:
        """Handle clicks while the loader's loop waits. If the page does not answer, say so once."""
        comm.pump()
        before = self._silence.noticed
        self._silence.looked(closed=self.widget.closed)
        if self._silence.noticed and not before:
            self._on_silence()

    def _on_silence(self) -> None:
        """Show the first samples in the static form: no view will ask for any."""
        self._on_screen = self._on_screen or list(range(min(FIRST, self._total)))
        self._static_due = True
        self.write_static()

    # ---- what the user does in Python -------------------------------------------------------------------------------

    @property
    def selected(self) -> list[int]:
        """Dataset indices of the selected samples, in the order of selection. Can be assigned.

        Raises:
            IndexError: One of the assigned indices is out of range.
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
            index: Dataset index of the sample.

        Raises:
            IndexError: There is no such sample.
        """
        index = operator.index(index)
        if not 0 <= index < self._total:
            raise IndexError(f"there is no sample {index}: there are {self._total:,}, from 0")
        self._opened = index
        self._send({"kind": "show", "index": index})

    def good(self) -> Any:
        """Return the dataset without the selected samples, as a `torch.utils.data.Subset`.

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
        return self._table.failed()

    def rows(self) -> list[Row]:
        """Return one row for each sample that was read or failed (the last 100,000), in the order of their indices.

        Each row is a dict with `index`, `seconds` and `cpu_seconds` (to read the sample), `nbytes`, `worker` (id of the
        explorer's worker), `error` (None if the sample was read), and the fields of the sample by name: numbers, label
        names, and strings cut to one line. Any other field (an array, a picture) is a short string, with separate keys
        for its shape and statistics: `image.shape`, `image.mean`, `image.min`, `image.max`; a string has `text.length`.
        """
        return self._table.rows()

    def to_pandas(self) -> Any:
        """Return `rows()` as a `pandas.DataFrame`, with the dataset index as its index.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=None if len(self._table) else ["index"]).set_index("index")

    def scan(self, count: int = 1000) -> int:
        """Read samples that are spread evenly over the dataset, for `rows()`, `costs()`, `filter()` and `problems()`.

        No pictures are drawn, and all samples share one seed, so that equal samples stay equal after random
        augmentation. The call blocks until all samples have been read; the browser shows the progress. An interrupt
        ends the scan, and the samples that were read are kept. Views keep working meanwhile, and their samples are read
        first.

        Args:
            count: Number of samples.

        Returns:
            Number of samples that have a row now.

        Raises:
            NbloaderError: No sample can be read.
            TypeError: The dataset is a stream, which is read from its beginning.
        """
        if self._source.streaming:
            raise TypeError("a stream cannot be scanned: its samples are read from the beginning, as you scroll")
        try:
            self._begin_scan(count)
            with self._news:
                while self._scan is not None and not (self._closed or self._problem):
                    self._news.wait(PUMP_INTERVAL)
                    comm.pump()
                if self._problem:
                    raise NbloaderError(json.loads(self._problem)["error"])
                return len(self._table)
        finally:
            self._end_scan()

    def _begin_scan(self, count: int) -> None:
        count = min(count, self._total, MAX_ROWS)
        chosen = self._spread(count) if count > 0 else []
        with self._lock:
            self._problem = ""  # the dataset may have been repaired since
            missing = [index for index in chosen if not self._table.checked(index)]
            self._scan = Scan(missing)
        self._feed_scan()

    def _feed_scan(self) -> None:
        """Request the next samples of a scan, and send its progress to the views."""
        with self._lock:
            scan = self._scan
            if scan is None:
                return
            requested = scan.request()
            suspects = self._table.suspects() if scan.ended else {}
            if scan.ended and not suspects:
                self._scan = None
                self._news.notify_all()
        if requested:
            self._fetcher.scan(requested)
        if suspects:  # the scan ends when they were read, too
            self._fetcher.probe(suspects)
        now = time.monotonic()
        if scan.ended or scan.paused or not scan.left or now - self._scan_shown > SCAN_INTERVAL:
            self._scan_shown = now
            self._send({"kind": "scan", "scan": self._scanning()})

    def _end_scan(self) -> None:
        with self._lock:
            scan, self._scan = self._scan, None
            self._news.notify_all()
        if scan is not None:
            self._fetcher.stop_scan()
            self._send({"kind": "scan", "scan": None})

    def _scanning(self) -> dict[str, Any] | None:
        """Return the progress of a scan; None if none is running."""
        with self._lock:
            return None if self._scan is None else self._scan.to_json()

    def problems(self) -> Found:
        """Return the problems of the samples that were scanned: `view.problems()["duplicate"]`.

        | kind | samples that |
        |---|---|
        | `"failed"` | could not be read, scanned or not |
        | `"duplicate"` | have exactly the same content as an earlier one |
        | `"alike"` | have a picture that looks like that of an earlier one: resized, brighter, compressed again |
        | `"not finite"` | contain NaN or infinite numbers |
        | `"constant"` | contain a picture or a signal with a single value |
        | `"shape"` | differ in shape, type or fields from nearly all others |

        Returns:
            For each kind, a dict from dataset indices to one-line descriptions of the problem.
        """
        return {kind: dict(found) for kind, found in self._table.problems().items()}

    def costs(self, by: str) -> list[Row]:
        """Return the cost of the samples that were read, by the value of a field; the most expensive value first.

        Args:
            by: The name of a field, such as "label".

        Returns:
            For each value a dict with `value`, `samples` (how many), `share_of_samples`, `share_of_time` and `seconds`
            (on average).

        Raises:
            KeyError: No sample that was read has this field.
        """
        return self._table.costs(by)

    def add_column(self, name: str, values: Any, names: Sequence[str] | None = None) -> None:
        """Add values of your own to the samples, such as losses or predictions, or replace those of the same name.

        Histograms, scatter plots, filters, sorting, groups, costs, `rows()` and `confusion()` have them like any field,
        also for samples that were not read.

        Args:
            name: Name of the column. A field of the samples with this name is hidden.
            values: A value for each sample, in their order: a list, an array, a tensor. Or values of some samples by
                dataset index: a dict, or a `pandas.Series` with dataset indices. Numbers, strings, bools or None.
            names: Names of classes for whole numbers. None uses those of the dataset if the name of the column has
                "label", "class", "target" or "pred" in it.

        Raises:
            ValueError: There is another number of values than samples, an index is out of range or repeated, or
                there are too many distinct strings.
            TypeError: A value is neither a number nor a string, or the keys are not dataset indices.
        """
        if names is None and any(word in name.lower() for word in CLASS_WORDS):
            listed = list(self._source.names.values())
            names = listed[0] if len(listed) == 1 else self._source.names.get("label")
        self._table.add_column(name, OwnColumn.of(name, values, self._total, names))
        self._send({"kind": "again", "indices": []})

    def remove_column(self, name: str) -> None:
        """Remove a column that was added.

        Raises:
            KeyError: There is no such column.
        """
        self._table.remove_column(name)
        self._send({"kind": "again", "indices": []})

    def sort(self, by: str, *, descending: bool = False) -> list[int]:
        """List samples sorted by a column: those that were read or have a value of your own, those without one last.

        Args:
            by: A field, such as "label", a fact, such as "seconds" or "image.mean", or a column that was added.
            descending: Whether the largest value is the first one.

        Returns:
            The dataset indices. Filters, words and groups that were chosen before stay.

        Raises:
            KeyError: There is no such column.
        """
        return self._arrange(self._arrangement._replace(sort=by, descending=descending))

    def group(self, by: str, each: int = EACH) -> dict[str, int]:
        """List samples in groups by the value of a column, the largest group first.

        Args:
            by: A column with few distinct values, such as "label".
            each: Maximum number of samples that are listed of a group. A click on its heading lists all of them.

        Returns:
            The number of samples in each group, of those that were read or have a value of your own.

        Raises:
            KeyError: There is no such column, or it has too many distinct values.
        """
        self._arrange(self._arrangement._replace(group=by, each=each))
        return {group.name: group.size for group in self._arranged.groups}

    def search(self, words: str) -> list[int]:
        """List the samples whose texts contain all words, in any case. `scan()` reads more samples.

        Args:
            words: Words with spaces between them.

        Returns:
            The dataset indices, among the samples that were read.
        """
        return self._arrange(self._arrangement._replace(words=words))

    def confusion(self, rows: str, columns: str) -> dict[str, dict[str, int]]:
        """Count the pairs of values of two columns, such as labels and predictions.

        Args:
            rows: A column with few distinct values, such as "label".
            columns: Another one, such as predictions that were added with `add_column()`.

        Returns:
            For each class in `rows`, the number of samples of each class in `columns`.

        Raises:
            KeyError: There is no such column, or it has too many distinct values.
        """
        classes, counts = self._table.confusion(rows, columns)
        return {name: dict(zip(classes, line, strict=True)) for name, line in zip(classes, counts, strict=True)}

    def embed(self, values: Any, *, name: str = "map", method: Method | None = None) -> None:
        """Show a map of the samples on which similar ones are near each other, in the scatter plot.

        Adds the columns `"map x"` and `"map y"`. "Similar" in a sample lists the most similar ones.

        Args:
            values: A vector for each sample, as an array or a tensor, for example of a model's last layer; or vectors
                by dataset index, as a dict. Or a function that returns the vector of a sample: it is called in this
                process, for the selected samples, or for 1,000 that are spread over the dataset.
            name: Name of the map.
            method: "pca" for the two principal components, "umap" for UMAP. None uses UMAP if umap-learn is installed.
                Vectors of two numbers are places themselves.

        Raises:
            ValueError: There is another number of vectors than samples, or they are not finite or of different length.
            ModuleNotFoundError: `method` is "umap", and umap-learn is not installed.
        """
        if callable(values):
            values = {index: values(self._source.dataset[index]) for index in self.selected or self._spread(EMBEDDED)}
        embedding = Embedding.of(values, self._total)
        embedding.name = name
        places = embedding.places(method)
        for axis, at in (("x", 0), ("y", 1)):
            column = OwnColumn(embedding.indices, places[:, at])
            self._table.add_column(f"{name} {axis}", column)
        self._embedding = embedding
        self._send(self._state())
        self._send(_plot(embedding))

    def similar(self, index: int, count: int = 50) -> dict[int, float]:
        """List the samples whose vectors are most similar to that of a sample, after `embed()`.

        Args:
            index: Dataset index of the sample.
            count: Number of samples.

        Returns:
            The cosine of the angle between both vectors, by dataset index, the most similar sample first.

        Raises:
            KeyError: The sample has no vector.
        """
        if self._embedding is None:
            raise KeyError("no sample has a vector: call view.embed() first")
        found = self._embedding.similar(operator.index(index), count)
        notes = {other: f"{cosine:.3f} similar to {index}" for other, cosine in found.items()}
        with self._lock:
            self._arrangement, self._by_function = Arrangement(), True
            self._arranged = Listed([index, *found], notes, [])
        for view in list(self._views):
            self._on_order(view, {"name": "filtered"})
        return found

    def _spread(self, count: int) -> list[int]:
        """Return dataset indices that are spread evenly over the dataset."""
        found: list[int] = np.unique(np.linspace(0, self._total - 1, min(count, self._total)).astype(np.int64)).tolist()
        return found

    def code(self) -> str:
        """Return the present selection, filters and order as Python, which arranges another explorer `view` alike."""
        with self._lock:
            lines = ["# view.filter() or view.similar() was called: repeat that call here"] if self._by_function else []
            lines += self._arrangement.code()
            if self._selected:
                lines.append(f"view.selected = {list(self._selected)}")
        return "\n".join(lines)

    def _arrange(self, arrangement: Arrangement) -> list[int]:
        """List samples in all views.

        Raises:
            KeyError: A column does not exist, or cannot be used so.
        """
        listed = arrangement.listed(self._table)
        with self._lock:
            self._arrangement, self._arranged, self._by_function = arrangement, listed, False
        for view in list(self._views):
            self._on_order(view, {"name": "filtered"})
        return list(listed.indices)

    def filter(self, function: Callable[[Row], object]) -> list[int]:
        """List only some of the samples that were read: `view.filter(lambda row: row["seconds"] > 0.1)`.

        Samples that were not read have rows, too, if `add_column()` has added values for them.

        Args:
            function: Called with a row as in `rows()`; returns whether to list the sample. If it raises `KeyError` or
                `TypeError` (a sample that failed has no fields), the sample is not listed.

        Returns:
            The dataset indices.
        """
        found = []
        for row in self._table.rows(every=True):
            with contextlib.suppress(KeyError, TypeError):
                if function(row):
                    found.append(row["index"])
        with self._lock:
            self._arrangement, self._arranged, self._by_function = Arrangement(), Listed(found, {}, []), True
        for view in list(self._views):
            self._on_order(view, {"name": "filtered"})
        return found

    def retry(self, indices: Iterable[int] | None = None) -> None:
        """Read samples again, with new workers and the dataset as it is now.

        If the class of the dataset was redefined, in an edited cell or a reloaded module, the dataset gets the new
        class, as with `DataLoader.reload()`.

        Args:
            indices: Which samples; None for those that failed.

        Raises:
            TypeError: The dataset cannot take the new definition of its class.
        """
        chosen = self.failed if indices is None else [int(index) for index in indices]
        part = self._source.original
        for _ in range(MAX_NESTED):  # the dataset and, for a Subset, the inner one
            with_current_class(part)
            part = getattr(part, "dataset", None)
        scanned = [index for index in chosen if self._table.checked(index)]
        self._table.drop(chosen)
        if isinstance(self._source.dataset, BatchSamples):
            self._source.dataset.forget()
        self._send({"kind": "again", "indices": chosen})
        self._fetcher.retry(chosen)
        self._fetcher.scan(scanned)

    def compare(self, other: Any = None) -> Explorer:
        """Show the same samples under the same seeds by two versions of the dataset, and how they differ.

        Edit the class of the dataset, a transform or a function that it uses, run the cell, and call `view.compare()`.
        The dataset itself is not changed: `retry()`, or `reload()` of a loader, does that.

        Args:
            other: The second version of the dataset. None takes the current definitions of the classes and functions
                that the dataset refers to.

        Returns:
            A separate explorer, whose samples have the fields `before`, `after` and `difference`: for arrays of equal
            shapes the absolute difference. It is shown if it is the last expression of a cell, or by `show()`.

        Raises:
            TypeError: The dataset has no indices, or is asynchronous.
            ValueError: Nothing that the dataset refers to was redefined.
        """
        source = self._source
        if source.streaming or is_async(source.dataset) or isinstance(source.dataset, BatchSamples):
            raise TypeError("compare() is for a dataset with __getitem__ and __len__ that is not asynchronous")
        before = source.dataset
        after = renewed(before) if other is None else other
        if after is before:
            raise ValueError(
                f"no class or function that {source.title} refers to was redefined: edit it and run its cell before, "
                "or pass the second version of the dataset"
            )
        undone = _normalization(self._normalization, source.original)
        return Explorer(
            Versions(before, after, source.workers),
            self._renderers,
            num_workers=self._fetcher.num_workers,
            workers=self._fetcher.kind,
            seed=self._fetcher.seed,
            buffer=self._total,
            normalization=False if undone is None else (undone.mean, undone.std),
            tokenizer=source.tokenizer,
        )

    @property
    def _debuggable(self) -> bool:
        """Whether samples are results of the dataset's own `__getitem__`, so that they can be debugged."""
        source = self._source
        return source.dataset is source.original and not (source.streaming or is_async(source.dataset))

    def batch(self, epoch: int, batch: int) -> Explorer:
        """Explore a batch of the loader: its samples as they were delivered, and its types, shapes and size in bytes.

        Args:
            epoch: Number of the epoch, as in `BatchRecord.epoch`.
            batch: Number of the batch, as in `BatchRecord.index`.

        Returns:
            A separate explorer, whose samples are numbered by their position in the batch. It is shown if it is the
            last expression of a cell, or by `show()`.

        Raises:
            TypeError: This is not the explorer of an nbloader loader, or the loader no longer exists.
            ReplayError: The batch cannot be reproduced; see `DataLoader.replay`.
        """
        loader = self._loader()
        if loader is None:
            raise TypeError("batch() is for the explorer of a loader of nbloader that still exists: loader.explore()")
        explorer: Explorer = loader.replay(epoch, batch).explore(normalization=self._normalization)
        return explorer

    def debug(self, index: int, draw: int = 0, *, post_mortem: bool = False) -> None:
        """Read a sample in IPython's debugger or pdb, in this process and with the seed that it has in this explorer.

        The debugger stops at the first line of the dataset's `__getitem__` and at the line that raises, as with
        `DataLoader.debug`, which reproduces a sample as it was delivered in a batch.

        Args:
            index: Dataset index of the sample.
            draw: Number of the random draw.
            post_mortem: Whether to stop only at the line that raises.

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
        process = not self._fetcher.in_process
        with as_in_worker(
            source.dataset, source.worker_init_fn, num_workers=self._fetcher.num_workers, base_seed=0, process=process
        ) as dataset:
            Seeding(dataset).after(rng.seed_everything)(sample_seed(self._fetcher.seed, request))
            debugger.debug(lambda: dataset[index], () if post_mortem else stop_in)

    def close(self) -> None:
        """Stop the workers and leave the static form. Closing twice is a no-op."""
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
        if self._silence.heard():
            self._plan_static()
        if self._closed or self.widget.serve(message):
            return
        handler = self._handlers.get(str(message.get("kind")))
        if handler is not None:
            handler(self, str(message.get("view")), message)

    def _on_ready(self, view: str, _message: Mapping[str, Any]) -> None:
        self._views.add(view)
        self._send(self._state(), to=view)
        if self._embedding is not None:
            self._send(_plot(self._embedding), to=view)
        first = self._fetcher.there(range(min(FIRST, self._total)))
        if first:  # read while the page loaded the view
            self._send_cards(first, to=view)

    def _on_gone(self, view: str, _message: Mapping[str, Any]) -> None:
        self._views.discard(view)
        self._fetcher.forget(view)

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
        self.selected = [index for index in message["indices"] if 0 <= index < self._total]

    def _on_give_up(self, _view: str, message: Mapping[str, Any]) -> None:
        self._fetcher.give_up(int(message["index"]))

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
            self._begin_scan(int(message["count"]))
        elif action == "stop":
            self._end_scan()
        elif action in ("pause", "resume"):
            with self._lock:
                if self._scan is not None:
                    self._scan.pause(paused=action == "pause")
            if action == "pause":
                self._fetcher.stop_scan()
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
        with self._lock:
            self._arrangement, self._arranged, self._by_function = arrangement, listed, False
        self._on_order(view, {"name": "filtered"})

    def _on_similar(self, _view: str, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(KeyError):
            self.similar(int(message["index"]))

    def _on_lasso(self, view: str, message: Mapping[str, Any]) -> None:
        """Select the samples inside of a polygon in the scatter plot, and list them."""
        self.selected = self._table.within(str(message["x"]), str(message["y"]), message["corners"])
        self._on_order(view, {"name": "selected"})

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
        """Send the list of samples that a view shows instead of all samples."""
        name = message["name"]
        with self._lock:
            listed = self._arranged
        notes: Mapping[int, str] = {}
        groups: list[Group] = []
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
        }
        self._send({"kind": "order", **content}, [buffer], to=view)

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
                "scanning": self._scanning(),
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
            self._plan_static()

    def _on_end(self, request: Request, length: int) -> None:
        """Handle a request for a sample beyond the end of a stream, which has `length` samples."""
        with self._lock:
            ends, self._open_ended = self._open_ended, False
            self._total = min(self._total, length)
            self._draws.pop(request, None)
        if ends:
            self._send(self._state())

    def _on_scanned(self, index: int) -> None:
        with self._lock:
            if self._scan is not None:
                self._scan.finish(index)
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
            with self._news:
                self._problem = problem
                self._scan = None if problem else self._scan
                self._news.notify_all()
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

    # ---- the static form --------------------------------------------------------------------------------------------

    def _plan_static(self) -> None:
        """Schedule writing the static form for when no more samples arrive."""
        with self._lock:
            self._static_due = True
            self._static_at = time.monotonic() + STATIC_PAUSE
            if self._shown and not (self._closed or self._timing):
                self._start_timer(STATIC_PAUSE)

    def _start_timer(self, seconds: float) -> None:
        self._timing = True
        self._timer = threading.Timer(seconds, in_this_context(_call), (weakref.ref(self), "_on_timer"))
        self._timer.daemon = True
        self._timer.name = "nbloader-explorer-static"
        self._timer.start()

    def _on_timer(self) -> None:
        """Write the static form, or wait longer if samples have arrived since. Only one timer runs at a time."""
        with self._lock:
            rest = self._static_at - time.monotonic()
            if rest > 0 and self._static_due and not self._closed:
                self._start_timer(rest)
                return
            self._timing = False
        self.write_static()

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
        notice = advice("explorer", "nbloader.explore(...)", CALLS) if self._silence.noticed else ""
        return static.html(self._name, styles(), self._source.title, total, cards, notice)


def _plot(embedding: Embedding) -> dict[str, Any]:
    """Return the message that has a view plot a map."""
    return {"kind": "plot", "x": f"{embedding.name} x", "y": f"{embedding.name} y"}


def _heading(group: Group) -> dict[str, Any]:
    """Return the heading of a group as JSON values."""
    return {"name": group.name, "size": group.size, "listed": len(group.indices), "filters": group.filters}


def _normalization(given: tuple[Any, Any] | Literal[False] | None, dataset: Any) -> Normalization | None:
    """Return the normalization to undo when pictures are drawn.

    Args:
        given: Mean and standard deviation; None for those that the dataset declares; False for no normalization.
        dataset: The dataset.

    Raises:
        ValueError: `given` is not a valid normalization.
    """
    if given is None:
        return declared(dataset)
    if given is False:
        return None
    found = Normalization.of(given[0], given[-1])
    if found is None or len(given) != len(Normalization._fields):
        raise ValueError(
            f"normalization must be (mean, std), each a number or one number per channel, and std not 0; not {given!r}"
        )
    return found


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


def _call(ref: weakref.ref[Explorer], method: str, *arguments: Any) -> None:
    """Call a method of an explorer, unless it was garbage-collected."""
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
"""The explorers that were shown last: they are kept alive for their views, even if no variable refers to them."""


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
