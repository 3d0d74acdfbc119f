"""`Explorer`: what a notebook can do with the samples of one source, and with the views that show them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from nbloader._util import rng
from nbloader.errors import NbloaderError
from nbloader.explorer.adapters import Adapted
from nbloader.explorer.arrangement import EACH, Listed
from nbloader.explorer.assets import ASSETS, TEXT
from nbloader.explorer.batch_samples import BatchSamples
from nbloader.explorer.conversation import Conversation
from nbloader.explorer.describer import Renderer
from nbloader.explorer.embedding import Embedding, Method
from nbloader.explorer.fetcher import SampleFetcher, sample_seed
from nbloader.explorer.normalization import Normalization, declared
from nbloader.explorer.own_columns import OwnColumn
from nbloader.explorer.problems import Found
from nbloader.explorer.reader import Request
from nbloader.explorer.scan import spread
from nbloader.explorer.sources import Source, source_of
from nbloader.explorer.table import Row, SampleTable
from nbloader.explorer.versions import Versions, renewed
from nbloader.frontend.live import LiveWidget
from nbloader.frontend.outputs import html_for_marimo
from nbloader.workers.fetcher import is_async
from nbloader.workers.in_process import as_in_worker
from nbloader.workers.seeding import Seeding

CLASS_WORDS = ("label", "class", "target", "pred")
"""Words in the name of a column whose whole numbers may be classes."""
EMBEDDED = 1000
"""Number of samples that a function embeds if none are selected."""


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
        widget: A widget with the assets of the explorer; None creates one.

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
        widget: LiveWidget | None = None,
    ) -> None:
        source = source_of(x, buffer, split)
        if tokenizer is not None:
            source = dataclasses.replace(source, tokenizer=tokenizer)
        self._normalization, self._renderers = normalization, renderers
        undone = _normalization(normalization, source.original)
        loader = source.loader
        self._loader = weakref.ref(loader) if loader is not None else lambda: None
        self._source: Source = dataclasses.replace(source, loader=None)
        notes = [self._source.note] if self._source.note else []
        if undone is not None:
            notes.append(f"Pictures are shown without their normalization ({undone}).")
        create_fetcher = functools.partial(
            SampleFetcher,
            self._source,
            renderers,
            undone,
            kinds,
            num_workers=num_workers,
            kind=workers or self._source.workers,
            seed=seed,
        )
        self._table = SampleTable()
        widget = widget or LiveWidget(ASSETS, TEXT)
        self._conversation = Conversation(widget, self._source, self._loader, self._table, create_fetcher, notes)
        self._fetcher = self._conversation.fetcher
        self._output = self._conversation.output
        self.widget = self._conversation.widget

    def __repr__(self) -> str:
        """The constant text."""
        return TEXT

    def __len__(self) -> int:
        """Return the number of samples; for a stream of unknown length, the most that can be shown."""
        return self._conversation.total

    def _ipython_display_(self) -> None:
        if not self._output.in_running_cell:
            self.show()

    def _display_(self) -> Any:
        """Return what marimo shows for the last line of a cell."""
        self._begin_view()
        return html_for_marimo(self._output.html()) if self._output.closed else self.widget

    def show(self) -> None:
        """Show the explorer below the running cell, as an additional view."""
        self._begin_view()
        self._output.show(self.widget)

    def _begin_view(self) -> None:
        _shown.append(self)
        self._output.shown = True
        if not self._output.closed:
            self._conversation.begin()

    def write_static(self) -> None:
        """Save what is on screen in the notebook, so that it is visible without the kernel."""
        self._output.write()

    # ---- what the user does in Python -------------------------------------------------------------------------------

    @property
    def selected(self) -> list[int]:
        """Dataset indices of the selected samples, in the order of selection. Can be assigned.

        Raises:
            IndexError: One of the assigned indices is out of range.
        """
        return self._conversation.selected

    @selected.setter
    def selected(self, indices: Iterable[int]) -> None:
        self._conversation.select(indices)

    def open(self, index: int) -> None:
        """Show a sample in full, in all views.

        Args:
            index: Dataset index of the sample.

        Raises:
            IndexError: There is no such sample.
        """
        self._conversation.open_sample(index)

    def good(self) -> Any:
        """Return the dataset without the selected samples, as a `torch.utils.data.Subset`.

        The samples of a table or of a dict of columns are its rows, as the explorer shows them.

        Raises:
            TypeError: The dataset is a stream, which has no indices; or the samples are those of one batch.
        """
        if self._source.streaming:
            raise TypeError(
                "a stream has no indices. Skip broken samples in its __iter__, or pass on_error to the loader."
            )
        if self._source.fixed:
            raise TypeError("this explorer shows the samples of one batch. Use explore(dataset).good().")
        from torch.utils.data import Subset

        bad = set(self.selected)
        adapted = isinstance(self._source.dataset, Adapted)
        samples = self._source.dataset if adapted else self._source.original
        return Subset(samples, [index for index in range(len(self)) if index not in bad])

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
            raise TypeError("a stream cannot be scanned, because its samples are read from the beginning as you scroll")
        try:
            self._conversation.begin_scan(count)
            problem = self._conversation.wait_for_scan()
            if problem:
                raise NbloaderError(problem)
            return len(self._table)
        finally:
            self._conversation.end_scan()

    def problems(self) -> Found:
        """Return the problems of the samples that were scanned: `view.problems()["duplicate"]`.

        The kinds are:

        - "failed": could not be read, scanned or not;
        - "duplicate": have exactly the same content as an earlier one;
        - "alike": have a picture that looks like that of an earlier one: resized, brighter, compressed again;
        - "not finite": contain NaN or infinite numbers;
        - "missing": rows of a table without a value in a column;
        - "constant": contain a picture or a signal with a single value;
        - "shape": differ in shape, type or fields from nearly all others.

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
                "label", "class", "target" or "pred" in it. A negative number becomes its text, and a number beyond the
                last name keeps all of them numbers.

        Raises:
            ValueError: There is another number of values than samples, an index is out of range or repeated, or
                there are too many distinct strings.
            TypeError: A value is neither a number nor a string, or the keys are not dataset indices.
        """
        if names is None and any(word in name.lower() for word in CLASS_WORDS):
            listed = list(self._source.names.values())
            names = listed[0] if len(listed) == 1 else self._source.names.get("label")
        self._table.add_column(name, OwnColumn.of(name, values, len(self), names))
        self._conversation.refresh()

    def remove_column(self, name: str) -> None:
        """Remove a column that was added.

        Raises:
            KeyError: There is no such column.
        """
        self._table.remove_column(name)
        self._conversation.refresh()

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
        found: list[int] = self._arrange(sort=by, descending=descending).indices.tolist()
        return found

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
        return {group.name: group.size for group in self._arrange(group=by, each=each).groups}

    def search(self, words: str) -> list[int]:
        """List the samples whose texts contain all words, in any case. `scan()` reads more samples.

        Args:
            words: Words with spaces between them.

        Returns:
            The dataset indices, among the samples that were read.
        """
        found: list[int] = self._arrange(words=words).indices.tolist()
        return found

    def _arrange(self, **changes: Any) -> Listed:
        """List samples in all views, as before but for some changes."""
        return self._conversation.arrange(self._conversation.arrangement._replace(**changes))

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
            chosen = self.selected or spread(EMBEDDED, len(self))
            values = {index: values(self._source.dataset[index]) for index in chosen}
        embedding = Embedding.of(values, len(self))
        embedding.name = name
        places = embedding.places(method)
        for axis, at in (("x", 0), ("y", 1)):
            column = OwnColumn(embedding.indices, places[:, at])
            self._table.add_column(f"{name} {axis}", column)
        self._conversation.plot(embedding)

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
        return self._conversation.list_similar(index, count)

    def code(self) -> str:
        """Return the present selection, filters and order as Python, which arranges another explorer `view` alike."""
        return self._conversation.code()

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
        self._conversation.list_found(Listed(np.array(found, np.int64), {}, []))
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
        self._conversation.retry(self.failed if indices is None else [int(index) for index in indices])

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
            raise TypeError(
                "compare() needs a dataset with __getitem__ and __len__, and __getitem__ must not be asynchronous"
            )
        before = source.dataset
        after = renewed(before) if other is None else other
        if after is before:
            raise ValueError(
                f"there is nothing to compare, because no class or function that {source.title} uses has changed. Edit "
                "one, run its cell and call compare() again, or pass the second version of the dataset."
            )
        undone = _normalization(self._normalization, source.original)
        return Explorer(
            Versions(before, after, source.workers),
            self._renderers,
            num_workers=self._fetcher.num_workers,
            workers=self._fetcher.kind,
            seed=self._fetcher.seed,
            buffer=len(self),
            normalization=False if undone is None else (undone.mean, undone.std),
            tokenizer=source.tokenizer,
        )

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
            raise TypeError(
                "batch() needs an nbloader.DataLoader that still exists. Open the explorer with loader.explore()."
            )
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
        if not (source.debuggable and stop_in):
            raise TypeError(
                f"the debugger cannot stop in {source.title}, which has no __getitem__ that is written in Python"
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
        self._conversation.close()


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
            f"normalization must be (mean, std), each a number or one number per channel, and std must not be 0, "
            f"not {given!r}"
        )
    return found


_shown: collections.deque[Explorer] = collections.deque(maxlen=8)
"""The explorers that were shown last: they are kept alive for their views, even if no variable refers to them."""
