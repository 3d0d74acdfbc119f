"""`nbloader.explore`: opens an explorer; `nbloader.explore.renderer` registers a function that draws values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from nbloader._util.validate import one_of
from nbloader.explorer.describer import Renderer
from nbloader.explorer.kinds import KINDS

if TYPE_CHECKING:
    from nbloader.explorer.widget import Explorer
    from nbloader.workers.registry import InterchangeableKind

F = TypeVar("F", bound=Callable[[Any], Any])


INSTEAD = (
    "nbloader: the explorer needs a notebook (Jupyter or marimo). In a script or a terminal look at dataset[i], or "
    "step through it with loader.debug(i)."
)
"""What a script or a terminal prints in place of an explorer."""


class Explore:
    """Look at the samples of a dataset or a loader: `nbloader.explore(x)` as the last line of a cell."""

    def __init__(self) -> None:
        self._renderers: list[Renderer] = []

    def __call__(
        self,
        x: Any,
        *,
        num_workers: int = 2,
        workers: InterchangeableKind | None = None,
        seed: int = 0,
        buffer: int = 1000,
        normalization: tuple[Any, Any] | Literal[False] | None = None,
        kinds: Mapping[str, str] | None = None,
        tokenizer: Any = None,
        split: str | int | None = None,
    ) -> Explorer | None:
        """Open an explorer on the samples of an object.

        The explorer copies nothing to disk and opens no port. Its own workers read the samples that are on screen, and
        seed the random generators for each sample. This does not affect the generators of the notebook or of a loader.

        Args:
            x: A map dataset, an iterable dataset, torch's loader, an nbloader loader (even while it runs), an array, a
                list, a dict of columns, a table of pandas, polars or Arrow, a dataset of Lance, or the path of a
                Parquet file or a Lance dataset. For a loader, the samples of its dataset are shown.
            num_workers: Number of workers, each of which reads one sample at a time. A stream is read by one worker.
            workers: "process" or "thread"; by default the loader's kind, threads for data in memory and streams, and
                otherwise processes. A dataset that cannot be sent to processes is read in threads, and a note says so.
            seed: Seed of random augmentation: sample `i` is the same each time it is read.
            buffer: Number of samples of a stream that can be shown, from its beginning. They are kept in memory.
            normalization: Mean and standard deviation of the channels, to undo the normalization when pictures of
                floats are drawn; figures are not affected. None uses the `Normalize` among the dataset's transforms, if
                there is one. False draws pictures as they are.
            kinds: The kinds of fields, by name or position, where shapes and neighbors do not tell:
                `{"1": "mask", "meta.window": "signal"}`. The kinds are audio, boxes, cloud, flags, flow, image,
                keypoints, mask, signal, tokens and volume. If a value cannot be drawn as this kind, it is drawn as
                usual, and a note says so.
            tokenizer: An object with `decode(ids)` that turns token ids into text. None uses the `tokenizer` of the
                dataset or the collate function, if there is one.
            split: Which part of a `DatasetDict`, by its name, or of a list of datasets, such as the result of
                `random_split`, by its position. None uses "train", or the first one.

        Returns:
            The explorer. It is shown if it is the last expression of a cell, or by `show()`. In a script or a terminal,
            `explore` returns None, and prints what to use there.

        Raises:
            TypeError: `x` has no samples.
            ValueError: A number is not positive, `normalization` is invalid, there is no such split, or a kind is not
                registered.
        """
        from nbloader.frontend.host import host

        if num_workers < 1 or buffer < 1:
            raise ValueError(f"num_workers and buffer must be at least 1, not {num_workers} and {buffer}")
        if workers is not None:
            from nbloader.workers import registry

            one_of("workers", workers, get_args(registry.InterchangeableKind))
        for name in (kinds or {}).values():
            one_of("kinds", name, tuple(kind.name for kind in KINDS))
        if host() is None:
            print(INSTEAD)  # noqa: T201 - as the dashboard would be in the output of a cell
            return None
        from nbloader.explorer.assets import ASSETS, TEXT
        from nbloader.frontend.live import LiveWidget

        widget = LiveWidget(ASSETS, TEXT)  # the page loads the view while this process imports the rest
        try:
            from nbloader.explorer.widget import Explorer

            return Explorer(
                x, tuple(self._renderers), num_workers=num_workers, workers=workers, seed=seed, buffer=buffer,
                normalization=normalization, kinds=kinds, tokenizer=tokenizer, split=split, widget=widget,
            )  # fmt: skip
        except BaseException:
            widget.close()
            raise

    def renderer(self, applies: str | type | Callable[[str, Any], bool]) -> Callable[[F], F]:
        """Register a function that converts a value of a sample to something that can be drawn.

        It runs in the workers. What it returns is drawn in place of the value: an array or a PIL image as a picture, a
        string, a signal, a dict. It affects explorers that are opened later. If several renderers match, the one that
        was registered last is used.

            @nbloader.explore.renderer("depth")
            def depth(value):
                return matplotlib.cm.viridis(value / value.max())[..., :3]

        Args:
            applies: The name of a field ("depth", or "meta.depth"), a type, or a predicate on name and value.

        Returns:
            A decorator that returns the function unchanged.
        """

        def register(draw: F) -> F:
            self._renderers.insert(0, Renderer(applies, draw))
            return draw

        return register

    def clear_renderers(self) -> None:
        """Unregister all renderers."""
        self._renderers.clear()

    def __repr__(self) -> str:
        """Return one line that says how to use it."""
        return "<nbloader.explore: call it with a dataset or a loader>"


explore = Explore()
