"""The arguments of `DataLoader`, each declared once: type, default, check and documentation.

`LoaderConfig` is that declaration. The constructor's signature and the argument list in the documentation of
`DataLoader` are derived from it. It is frozen, and is passed to the parts that need it. To add an argument, add a field
here, and read `config.<name>` where it is used.
"""
# ruff: noqa: RUF009 - `_argument` declares a field, as `dataclasses.field` does, which takes a default that is immutable

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import inspect
import multiprocessing
import multiprocessing.context
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    SupportsFloat,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
)

import torch
from torch.utils.data import Dataset, IterableDataset

from nbloader._platform import CAN_START_PROCESSES, HAS_ZYGOTES
from nbloader._util.validate import natural, one_of
from nbloader.batch.chunking import check_chunk
from nbloader.device.accelerator import Accelerator
from nbloader.device.placement import check_devices
from nbloader.engine.iterator import check_names
from nbloader.sampling import datapipes, samplers
from nbloader.sampling.source import SourceSampler
from nbloader.scheduler.prefetch import MIN_DEPTH
from nbloader.workers.api import WorkerKind
from nbloader.workers.fetcher import OnError
from nbloader.workers.ray_options import RayOptions
from nbloader.workers.registry import InterchangeableKind, Workers, kind_class, kind_names

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
LoaderT = TypeVar("LoaderT")
P = ParamSpec("P")

Output: TypeAlias = Literal["torch", "numpy"]
Dispatch: TypeAlias = Literal["least_loaded", "round_robin"]
LastBatch: TypeAlias = Literal["keep", "discard", "rollover"]
OnTimeout: TypeAlias = Literal["raise", "restart"]
Device: TypeAlias = str | int | torch.device | Accelerator

MAX_TIMEOUT = 2_147_483
"""Maximum timeout in seconds, since the system counts the milliseconds of a wait in a C int."""
DEFAULT_PREFETCH_FACTOR = MIN_DEPTH
"""Batches requested ahead per worker if neither `prefetch_factor` nor `prefetch` is given."""
PREFETCH_FACTOR_HINT = "it is the number of batches to request ahead, per worker"


class MapDataset(Protocol[T_co]):
    """Anything with `__getitem__` (and `__len__`, unless a sampler is given), such as a list or an array."""

    def __getitem__(self, index: int, /) -> T_co:
        """Return one sample."""
        ...


DatasetLike: TypeAlias = Dataset[T_co] | MapDataset[T_co] | Iterable[T_co]


# ---- checks of one argument: they take its name and value, and return the value to keep --------------------------


def _choice(name: str, value: Any, *, among: Any) -> Any:
    one_of(name, value, get_args(among))
    return value


def _workers(name: str, value: Any) -> Any:
    if isinstance(value, int):
        *others, last = map(repr, kind_names())
        raise TypeError(
            f"workers must be {', '.join(others)} or {last}, the kind of worker, not {value!r}. "
            f"For the number of workers, pass num_workers={value}"
        )
    one_of(name, value, kind_names())
    return value


def _optional_natural(name: str, value: Any, *, hint: str) -> int | None:
    return None if value is None else natural(name, value, hint)


def _positive(name: str, value: Any) -> int:
    number = natural(name, value, "it is the number of samples to fetch at a time")
    if not number:
        raise ValueError(f"{name} must be at least 1, not 0: it is the number of samples to fetch at a time")
    return number


def _function(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, not {type(value).__name__}: {value!r}")
    return value


def _dataset(name: str, value: Any) -> Any:
    if isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(
            f"{name} must be an object that returns samples, not the path {value!r}. For a folder with one subfolder "
            f"of images per class use torchvision.datasets.ImageFolder({os.fsdecode(value)!r}). For other files, write "
            "a class with __len__ and __getitem__ that opens the i-th file of a list"
        )
    return value


def _ray(name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, RayOptions):
        raise TypeError(f"{name} must be an nbloader.RayOptions or None, not {type(value).__name__}: {value!r}")
    return value


def _timeout(name: str, value: Any) -> float:
    if not isinstance(value, SupportsFloat):  # numbers of NumPy and torch too, as torch's DataLoader
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    seconds = value if isinstance(value, (int, float)) else float(value)
    if not 0 <= seconds <= MAX_TIMEOUT:  # NaN too
        allowed = f"at most {MAX_TIMEOUT} seconds" if seconds > 0 else "non-negative"
        raise ValueError(f"{name} option should be {allowed}, not {value!r}; 0 waits without limit")
    return seconds


def _generator(name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"{name} must be a torch.Generator or None, not {type(value).__name__}: {value!r}")
    return value


def _context(context: Any, num_workers: int) -> Any:
    """Return the `multiprocessing_context` as torch keeps it: a context object, or None.

    Raises:
        ValueError: It names no start method of this system, or there are no workers.
        TypeError: It is neither a name nor a context.
    """
    if context is None:
        return None
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}"
        )
    if isinstance(context, str):
        valid = multiprocessing.get_all_start_methods()
        if context not in valid:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {valid!r}, but got "
                f"multiprocessing_context={context!r}"
            )
        return _startable(multiprocessing.get_context(context))
    if not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, "
            f"but got multiprocessing_context={context!r}"
        )
    return _startable(context)


def _startable(context: multiprocessing.context.BaseContext) -> multiprocessing.context.BaseContext:
    """Return a context, unless it is one of forks where nothing can be forked."""
    if context.get_start_method() == "fork" and not HAS_ZYGOTES:
        raise ValueError(
            'multiprocessing_context="fork" is supported on Linux only: omit it. Workers are then new interpreters, '
            "which receive the dataset as a pickle"
        )
    return context


def _on_error(name: str, value: Any) -> Any:
    if not callable(value) and value not in ("raise", "skip"):
        raise ValueError(
            f"{name} must be 'raise', 'skip' or a function from (index, exception) to a sample, not {value!r}"
        )
    return value


# ---- the declaration ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Declared:
    """The declaration of an argument, except for its name, type and default."""

    doc: str
    check: Callable[[str, Any], Any] | None
    fixed: bool
    """Whether the loader's attribute cannot be assigned after construction."""
    attribute: bool
    """Whether the loader keeps the value as an attribute of this name, as torch's does."""


def _argument(
    default: T,
    check: Callable[[str, Any], Any] | None = None,
    *,
    doc: str,
    fixed: bool = False,
    attribute: bool = True,
) -> T:
    declared: T = field(default=default, metadata={"declared": _Declared(doc, check, fixed, attribute)})
    return declared


@dataclass(frozen=True, eq=False)
class LoaderConfig(Generic[T_co]):
    """The arguments of `DataLoader`, checked, and what follows from them.

    Raises:
        ValueError: A wrong value. The message names the argument, the value and what is allowed; where torch has the
            same check, it begins as torch's.
        TypeError: A wrong type.
        RuntimeError: `device` does not exist on this machine.
    """

    dataset: DatasetLike[T_co] = field(
        repr=False,
        metadata={
            "declared": _Declared(
                doc="Anything with `__len__` and `__getitem__`: torch datasets, lists, NumPy arrays, tensors. Or an "
                "iterable dataset: torch's, or any object with `__iter__` only. Each worker iterates its own shard, "
                "which the dataset selects with `get_worker_info()`. Classes and functions defined in the notebook "
                "work with workers too.",
                check=_dataset,
                fixed=True,
                attribute=True,
            )
        },
    )
    batch_size: int | None = _argument(
        1, fixed=True, doc="Samples per batch. None yields samples without batching, as in torch."
    )
    shuffle: bool | None = _argument(None, attribute=False, doc="Visit the samples in a new random order each epoch.")
    sampler: Iterable[Any] | None = _argument(
        None, fixed=True, attribute=False, doc="Yields the indices, one by one. Excludes `shuffle`."
    )
    batch_sampler: Iterable[Any] | None = _argument(
        None, fixed=True, attribute=False,
        doc="Yields lists of indices. Excludes `batch_size`, `shuffle`, `sampler` and `drop_last`.",
    )  # fmt: skip
    num_workers: int = _argument(
        0, functools.partial(natural, hint="use num_workers=0 to load in this process"),
        doc="Number of workers; 0 loads each batch in this process when it is requested.",
    )  # fmt: skip
    collate_fn: Callable[[Any], Any] | None = _argument(
        None, _function, attribute=False,
        doc="Makes a batch from a list of samples. The default follows torch's `default_collate` and writes straight "
        "into shared memory.",
    )  # fmt: skip
    pin_memory: bool = _argument(
        False, doc="Copy batches to pinned memory. Without an accelerator, this only issues a warning."
    )
    drop_last: bool = _argument(False, fixed=True, doc="Drop the last batch of an epoch if it is incomplete.")
    timeout: float = _argument(
        0, _timeout,
        doc="Seconds to wait for one batch. 0 waits without limit, and after 30 s reports in the cell what the loop "
        "is waiting for. Needs workers.",
    )  # fmt: skip
    worker_init_fn: Callable[[int], None] | None = _argument(
        None, _function,
        doc="Called with the worker id in each worker when it starts: once per epoch, or once in all with "
        "`persistent_workers`, and in each replacement. Each batch is seeded by its number, unless this function seeds "
        "a generator: then, as in torch, each worker draws from its own, and batch i goes to worker i modulo "
        "`num_workers`.",
    )  # fmt: skip
    multiprocessing_context: str | multiprocessing.context.BaseContext | None = _argument(
        None, attribute=False,
        doc='How worker processes start: "fork" (the default on Linux), "forkserver" or "spawn", or a context of '
        "`multiprocessing` with that start method. Forked workers are copies of this process at the beginning of the "
        "epoch: nothing is pickled. The workers of the other two come from new interpreters, and get the dataset as a "
        "pickle. Without this argument, a loader whose forked workers hang changes to such clean workers, and says so.",
    )  # fmt: skip
    generator: torch.Generator | None = _argument(
        None, _generator, doc="The `torch.Generator` that the order and the seeds are drawn from, as in torch."
    )
    _: KW_ONLY
    prefetch_factor: int | None = _argument(
        None, functools.partial(_optional_natural, hint=PREFETCH_FACTOR_HINT),
        doc="Batches to request ahead, per worker; 2 by default. If it is not given, the window grows for small and "
        "quick batches, up to 16. While one batch is late, workers continue beyond it, by at most 16 MB. At most "
        "this number is drawn ahead from a sampler of your own class, since it may learn from the loop.",
    )  # fmt: skip
    persistent_workers: bool = _argument(
        False, fixed=True,
        doc="With False (the default, as in torch), each epoch starts new workers with the dataset as it then is in "
        "this process, new seeds, and a call of `worker_init_fn`. True keeps the workers between epochs, along with "
        "their copies of the dataset and all changes that they made to it.",
    )  # fmt: skip
    pin_memory_device: str = _argument("", doc="Deprecated in torch. It is accepted and ignored.")
    in_order: bool = _argument(True, doc="False delivers batches in the order in which they are completed.")
    prefetch: int | None = _argument(
        None, functools.partial(_optional_natural, hint="0 requests a batch when the loop asks for it"), fixed=True,
        doc="Batches to request ahead in total. It overrides `prefetch_factor`. 0 requests a batch when the loop asks "
        "for it. With `num_workers=0`, a thread loads this many batches ahead.",
    )  # fmt: skip
    workers: Workers = _argument(
        "process", _workers, fixed=True,
        doc='"process", or "thread" for threads of this process. With threads nothing is pickled or copied. '
        "Unless Python is free-threaded, only one of them runs Python code at a time: use them for samples that wait "
        "for I/O or are loaded by native code. Batches are the same as with processes if random numbers are drawn from "
        "`nbloader.get_worker_info().rng`. The global generators of `random`, NumPy and torch belong to all threads of "
        "this process, and what a thread draws from them is not reproducible. "
        '"ray" for processes on the nodes of the Ray cluster to which this process is connected: the same batches in '
        "the same order.",
    )  # fmt: skip
    output: Output = _argument(
        "torch", functools.partial(_choice, among=Output), fixed=True, doc='"torch" for tensors or "numpy" for arrays.',
    )  # fmt: skip
    dispatch: Dispatch = _argument(
        "least_loaded", functools.partial(_choice, among=Dispatch), fixed=True,
        doc='"least_loaded" prefers torch\'s rule, by which batch i goes to worker i modulo `num_workers`. But while '
        "that worker has no room, a worker that would soon be idle takes the batch. "
        '"round_robin" always follows the rule, for datasets that keep state per worker. A slow batch then delays '
        "those behind it.",
    )  # fmt: skip
    device: Device | Sequence[Device | None] | None = _argument(
        None, fixed=True,
        doc='Where batches are placed: None or "cpu", or an accelerator such as "cuda", to which they are uploaded '
        "from pinned memory on a separate stream, whether or not `pin_memory` is set. With a list of devices, each "
        "step yields a list of batches, one per device. An incomplete last list follows `last_batch`.",
    )  # fmt: skip
    upload_ahead: int = _argument(
        1, functools.partial(natural, hint="0 uploads a batch when the loop asks for it"), fixed=True,
        doc="Batches to upload to each device before the loop asks for them.",
    )  # fmt: skip
    last_batch: LastBatch | None = _argument(
        None, fixed=True,
        doc='What to do with an incomplete last batch, as in Gluon: "keep", "discard" (torch\'s `drop_last=True`) or '
        '"rollover": its samples start the next epoch.',
    )  # fmt: skip
    auto_reload: bool = _argument(
        False, fixed=True, doc="Start loading the next epoch as soon as an epoch has been iterated to its end."
    )
    names: Sequence[str] | None = _argument(
        None, check_names, fixed=True, doc="Names for the elements of a batch: tuples and lists become dicts."
    )
    chunk_size: int | None = _argument(
        None, fixed=True,
        doc="Samples per chunk: several workers load one batch together, each a chunk of it, and this process joins "
        "the chunks. It must divide `batch_size`. With a `batch_sampler`, the last chunk may be smaller. A "
        "`collate_fn` receives all samples of the batch, and then runs in this process, with random generators that "
        "are seeded for the batch. Such a batch is not uploaded ahead (`upload_ahead`).",
    )  # fmt: skip
    concurrency: int = _argument(
        64, _positive, fixed=True,
        doc="Samples that each worker fetches at a time if the dataset is asynchronous (`async def __getitem__` or "
        "`async def __getitems__`): its event loop starts the next sample as soon as one has ended, across batches. "
        "Therefore many more batches are requested ahead, unless `prefetch` limits them. With `num_workers=0` a thread "
        "of this process runs the event loop. Other datasets ignore it.",
    )  # fmt: skip
    on_error: OnError = _argument(
        "raise", _on_error, fixed=True,
        doc='What to do when the dataset raises. "raise" raises in the loop. "skip" makes the batch from the other '
        "samples, and leaves it out if none is left. A function is called with (index, exception), where the dataset "
        "runs, and returns a sample to use instead. Samples that were skipped or replaced are counted, and kept "
        "with their tracebacks, in `stats()`. A line on standard error names the first one that is skipped.",
    )  # fmt: skip
    on_timeout: OnTimeout = _argument(
        "raise", functools.partial(_choice, among=OnTimeout), fixed=True,
        doc='"raise" raises `LoaderTimeoutError` with the stack of the worker that is processing the batch. "restart" '
        "replaces that worker, and loads the batch again. It raises after three workers have failed to produce "
        "the batch, or if a worker takes longer than 30 s to start.",
    )  # fmt: skip
    ray: RayOptions | None = _argument(
        None, _ray, fixed=True,
        doc='How the cluster is used with `workers="ray"`: `nbloader.RayOptions(...)`. By default workers run on all '
        "nodes, in proportion to their CPUs.",
    )  # fmt: skip
    max_restarts: int = _argument(
        100, functools.partial(natural, hint="0 raises when the first worker dies"), fixed=True,
        doc="Unexpected worker deaths to tolerate before the loader gives up.",
    )  # fmt: skip

    # ---- what follows from the arguments ----

    kind: type[WorkerKind] = field(init=False)
    """The class of the workers' kind."""
    iterable: bool = field(init=False)
    """Whether the dataset can only be iterated, in its own order."""
    chunk: int | None = field(init=False)
    """Samples per chunk; None if batches are not chunked."""
    devices: tuple[Any, ...] = field(init=False)
    """The checked device of each batch of a step; None for the host's memory."""

    def __post_init__(self) -> None:
        for name, declared in _declarations():
            if declared.check is not None:
                self._set(name, declared.check(name, getattr(self, name)))
        self._set("kind", kind_class(self.workers))
        dataset, shuffle = datapipes.apply_shuffle(
            self.dataset, self.shuffle, self.workers, in_process=self.kind.in_process
        )
        self._set("dataset", dataset)
        self._set("shuffle", shuffle)
        iterable = isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not _has_items(dataset))
        self._set("iterable", iterable)
        self._check_order()
        self._check_workers()
        self._check_batching()
        self._check_last_batch()
        self._set("drop_last", self.incomplete_batch == "discard")
        one, several = check_devices(self.device, self.output)
        self._set("devices", tuple(several or [one]))
        size = self.batch_sampler.batch_size if isinstance(self.batch_sampler, SourceSampler) else self.batch_size
        self._set(
            "chunk",
            check_chunk(
                self.chunk_size, batch_size=size, batch_sampler=self.batch_sampler, iterable=self.iterable
            ),
        )  # fmt: skip

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    # ---- checks of several arguments together ----

    def _check_order(self) -> None:
        if self.iterable:
            shuffled = self.shuffle or None  # torch accepts False
            for name, value in (
                ("shuffle", shuffled), ("sampler", self.sampler), ("batch_sampler", self.batch_sampler)
            ):  # fmt: skip
                if value is not None:
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value}; "
                        "the dataset defines the order"
                    )

    def _check_workers(self) -> None:
        if self.ray is not None and not self.kind.takes_ray_options:
            raise ValueError(f"ray={self.ray!r} applies to workers='ray': omit it with workers={self.workers!r}")
        if self.multiprocessing_context is not None and not self.kind.local_processes:
            raise ValueError(
                f"multiprocessing_context={self.multiprocessing_context!r} applies to worker processes: omit it "
                f"with workers={self.workers!r}"
            )
        if self.iterable and self.num_workers and not self.kind.reads_iterables:
            raise ValueError(
                f"workers={self.workers!r} cannot read an iterable dataset: use another kind, or num_workers=0"
            )
        if self.num_workers and self.kind.local_processes and not CAN_START_PROCESSES:
            raise ValueError(
                "worker processes are not supported on this system: pass workers='thread' for "
                f"{self.num_workers} worker threads, or num_workers=0"
            )
        if self.on_timeout == "restart" and not (self.timeout and self.num_workers):
            raise ValueError(
                f"on_timeout='restart' needs workers and a timeout in seconds, not num_workers={self.num_workers}, "
                f"timeout={self.timeout!r}"
            )
        if self.num_workers == 0:
            if self.prefetch_factor is not None:
                raise ValueError(
                    "prefetch_factor option could only be specified in multiprocessing: set num_workers > 0, or omit "
                    f"prefetch_factor={self.prefetch_factor!r}"
                )
            if self.persistent_workers:
                raise ValueError("persistent_workers option needs num_workers > 0")
        self._set("multiprocessing_context", _context(self.multiprocessing_context, self.num_workers))

    def _check_batching(self) -> None:
        if self.sampler is not None and self.shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle: omit one of them")
        if self.batch_sampler is not None:
            if self.batch_size != 1 or self.shuffle or self.sampler is not None or self.drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last: got "
                    f"batch_size={self.batch_size!r}, shuffle={self.shuffle!r}, "
                    f"sampler={'given' if self.sampler is not None else None}, drop_last={self.drop_last!r} with it"
                )
            self._set("batch_size", None)
        elif self.batch_size is None:
            if self.drop_last:
                raise ValueError(
                    "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
                )
        else:
            check_batch_size(self.batch_size)
        for name in ("sampler", "batch_sampler"):
            value = getattr(self, name)
            if isinstance(value, (bool, int, float)):  # other objects may be stand-ins: see `check_dataset`
                raise TypeError(f"{name} must be iterable or None, not {type(value).__name__}: {value!r}")

    def _check_last_batch(self) -> None:
        if self.last_batch is None:
            return
        one_of("last_batch", self.last_batch, get_args(LastBatch))
        if self.batch_size is None:
            raise ValueError(
                f"last_batch={self.last_batch!r} needs a batch_size: it is mutually exclusive with batch_sampler and "
                "with batch_size=None"
            )
        if self.iterable and self.last_batch == "rollover":
            raise ValueError(
                "last_batch='rollover' is for map datasets: with an iterable dataset each worker ends its own shard"
            )
        if self.drop_last and self.last_batch != "discard":
            raise ValueError(
                f"drop_last=True means last_batch='discard' and is mutually exclusive with "
                f"last_batch={self.last_batch!r}"
            )

    # ---- derived values ----

    @property
    def incomplete_batch(self) -> str:
        """What becomes of an incomplete last batch: "keep", "discard" or "rollover"."""
        return self.last_batch or ("discard" if self.drop_last else "keep")

    @property
    def sampler_may_learn(self) -> bool:
        """Whether the sampler may learn from the loop, so that no more is drawn ahead from it than torch would draw."""
        return samplers.may_learn(self.sampler) or samplers.may_learn(self.batch_sampler)

    def adapts_window(self, prefetch_factor: int | None, prefetch: int | None) -> bool:
        """Whether the prefetch window may grow for small and quick batches.

        Not if `in_order` is false: a slow sample would delay all that its worker holds.

        Args:
            prefetch_factor: The current value, which may differ from the argument.
            prefetch: The current value.
        """
        given = prefetch is not None or prefetch_factor is not None
        return not (given or self.sampler_may_learn) and self.in_order

    @property
    def batches_per_step(self) -> int | None:
        """Number of batches in the list that a step of the loop receives; None if a step receives a single batch."""
        return len(self.devices) if isinstance(self.device, (list, tuple)) else None

    def with_workers(self, kind: Workers) -> LoaderConfig[T_co]:
        """Return a copy with another kind of workers."""
        changed = copy.copy(self)
        changed._set("workers", kind)
        changed._set("kind", kind_class(kind))
        return changed

    def attributes(self) -> dict[str, Any]:
        """Return the values that the loader keeps as attributes of the same name."""
        return {name: getattr(self, name) for name, declared in _declarations() if declared.attribute}

    def values_for(self, record: type[Any]) -> dict[str, Any]:
        """Return the values of the fixed arguments that a dataclass has fields for."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(record) if field.name in FIXED}

    def make_samplers(self) -> tuple[Any, Any]:
        """Create the sampler and the batch sampler; the latter is None if automatic batching is disabled."""
        if self.iterable:
            return samplers.make_endless(batch_size=self.batch_size, drop_last=self.drop_last)
        return samplers.make_samplers(
            self.dataset, batch_size=self.batch_size, shuffle=bool(self.shuffle), sampler=self.sampler,
            batch_sampler=self.batch_sampler, last_batch=self.incomplete_batch, group=self.batches_per_step or 1,
            generator=self.generator,
        )  # fmt: skip


def _has_items(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")


def _declarations() -> Iterator[tuple[str, _Declared]]:
    for argument in dataclasses.fields(LoaderConfig):
        if "declared" in argument.metadata:
            yield argument.name, argument.metadata["declared"]


FIXED = frozenset(name for name, declared in _declarations() if declared.fixed)
"""Attributes of a loader that cannot be assigned after construction."""
FIXED_IN_TORCH = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})
"""Attributes that torch's loader refuses to assign, unless a program clears its initialization flag, as timm does."""
ARGUMENTS = frozenset(name for name, _declared in _declarations())
"""The names of all arguments."""


# ---- the constructor's signature and documentation ----------------------------------------------------------------

_CALL = "DataLoader.__init__()"
"""Prefix of Python's own errors about an invalid call; programs parse it."""
_SYNONYMS = {"n_jobs": "num_workers", "batchify_fn": "collate_fn", "bs": "batch_size"}
"""Argument names of other libraries that do not resemble ours."""


def constructor(
    config: Callable[P, LoaderConfig[Any]],  # noqa: ARG001 - for type checkers
) -> Callable[[Callable[[LoaderT, LoaderConfig[Any]], None]], Callable[Concatenate[LoaderT, P], None]]:
    """Give an `__init__` that takes a `LoaderConfig` the signature of `LoaderConfig` itself.

    Type checkers see that signature too, through `P`.

    Args:
        config: `LoaderConfig`, with the type of the samples: only type checkers use it.
    """

    def decorate(init: Callable[[LoaderT, LoaderConfig[Any]], None]) -> Callable[Concatenate[LoaderT, P], None]:
        @functools.wraps(init)
        def construct(self: LoaderT, /, *args: P.args, **kwargs: P.kwargs) -> None:
            _check_names_of_arguments(kwargs)
            try:
                signature.bind(self, *args, **kwargs)
            except TypeError as error:
                text = str(error).replace("multiple values", "got multiple values", 1)
                raise TypeError(f"{_CALL} {text}") from None
            init(self, create(*args, **kwargs))

        own = next(iter(inspect.signature(init).parameters.values()))
        create = cast("Callable[P, LoaderConfig[Any]]", LoaderConfig)  # without the alias of `typing` around it
        signature = inspect.signature(LoaderConfig, eval_str=True)
        signature = signature.replace(
            parameters=[own.replace(kind=own.POSITIONAL_OR_KEYWORD), *signature.parameters.values()],
            return_annotation=None,
        )
        construct.__signature__ = signature  # type: ignore[attr-defined]
        del construct.__wrapped__
        return construct

    return decorate


def _check_names_of_arguments(given: Iterable[str]) -> None:
    for name in given:
        if name not in ARGUMENTS:
            message = f"{_CALL} got an unexpected keyword argument {name!r}"
            similar = [_SYNONYMS.get(name, "")] if name in _SYNONYMS else difflib.get_close_matches(name, ARGUMENTS, 1)
            raise TypeError(message + (f"; did you mean {similar[0]}?" if similar else ""))


def document(cls: type[Any]) -> None:
    """Write the documentation of the arguments into a class's docstring, replacing its "Args:" section."""
    if cls.__doc__ is None:  # python -OO
        return
    lines = ["Args:"]
    for name, declared in _declarations():
        lines += textwrap.wrap(
            f"{name}: {declared.doc}", 116, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False
        )
    before, _args, after = inspect.cleandoc(cls.__doc__).partition("Args:\n")
    cls.__doc__ = before + "\n".join(lines) + "\n" + after.partition("\n")[2]


# ---- checks after construction ------------------------------------------------------------------------------------


def check_batch_size(value: Any) -> None:
    """Check a batch size.

    Raises:
        ValueError: It is not a positive integer.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={value!r}")


def check_kinds(kinds: Any) -> None:
    """Check the kinds of workers that may be tried.

    Raises:
        ValueError: One of them is unknown.
        TypeError: Not a sequence of strings.
    """
    if isinstance(kinds, str):
        raise TypeError(f'kinds={kinds!r} is one string: pass several, such as ("process", "thread")')
    for kind in kinds:
        one_of("kinds", kind, get_args(InterchangeableKind))


def check_predicted(*, workers: Any, batch_size: Any, cache: Any, transport: Any) -> None:
    """Check the arguments of a prediction; None for an argument that does not change.

    Raises:
        ValueError: A wrong value.
    """
    if workers is not None:
        one_of("workers", workers, get_args(InterchangeableKind))
    if batch_size is not None:
        check_batch_size(batch_size)
    if cache is not None and not 0 <= cache <= 1:
        raise ValueError(f"cache is the share of samples that come from a cache, 0 to 1, not {cache!r}")
    if transport not in {None, "none"}:
        raise ValueError(f'transport can only be predicted as "none" (no transport), not {transport!r}')


def check_source(source: Any, batch_size: Any, arguments: dict[str, Any]) -> None:
    """Check the arguments of `DataLoader.from_source`.

    Raises:
        TypeError: `source` is not callable.
        ValueError: A wrong value, or an argument that selects samples.
    """
    if not callable(source):
        raise TypeError(f"source must be callable with a batch size, not {type(source).__name__}: {source!r}")
    check_batch_size(batch_size)
    for name in ("dataset", "shuffle", "sampler", "batch_sampler", "drop_last", "last_batch"):
        if arguments.get(name):
            raise ValueError(f"from_source and {name} are mutually exclusive: got {name}={arguments[name]!r}")


def check_dataset(dataset: Any, sampler: Any, *, iterable: bool) -> None:
    """Check before an epoch that a dataset gives samples.

    This is not checked when the loader is created, since programs create loaders with a stand-in for the dataset, such
    as None or a mock, and never iterate them.

    Args:
        dataset: The dataset.
        sampler: What the order is drawn from.
        iterable: Whether the dataset is iterated rather than indexed.

    Raises:
        TypeError: It is a class, has no method that gives samples, or has no length although the order depends on it.
    """
    name = type(dataset).__name__
    if isinstance(dataset, type):
        name = dataset.__name__
        raise TypeError(f"dataset is the class {name} itself: create an instance of it, {name}(...)")
    if iterable:
        return
    if not _has_items(dataset) and hasattr(dataset, "__aiter__"):
        raise TypeError(
            f"dataset {name} has only __aiter__, which yields one sample at a time: define `async def __getitem__` and "
            "__len__ to await several samples at the same time, or define __iter__"
        )
    if not _has_items(dataset):
        raise TypeError(f"dataset must have __getitem__ and __len__, or __iter__; {name} has neither")
    if not hasattr(dataset, "__len__") and getattr(sampler, "data_source", None) is dataset:
        raise TypeError(f"dataset {name} has no __len__: add one, or pass a sampler")
