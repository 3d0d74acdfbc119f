"""The loader. A reader starts here.

    sampler -> dispatch -> worker: fetch, collate into shared memory -> receive -> reorder -> [pin] -> [upload] -+
                  ^                                                                                              v
                  +------------------------- credit (prefetch window) <------------------------------------- consumer

    sampler   indices of each batch (sampler.py), asked for on the consumer's thread
    dispatch  who makes which batch; retry, credit, order: a state machine without I/O (dispatch.py, assigning.py,
              reorder.py)
    worker    a process (worker.py) that fetches (fetch.py) and collates (collate.py) into a segment (shm.py),
              or a thread (threads.py)
    receive   connections, deaths, output: one selector (pool.py, wire.py, forkserver.py); who replaces whom (crew.py)
    engine    the lock, the supervisor thread, commands (engine.py, driver.py); what users may ask (steering.py)
    consumer  the iterator (epoch.py)

Every stage stamps its time; when the consumer comes back for the next batch the record goes to the event bus
(events.py), from which statistics (stats.py), traces and the dashboard are made (watching.py).
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data._utils import collate as theirs

from nbloader import events as ev
from nbloader.batch.chunking import check_chunk
from nbloader.batch.torch_collate import collate_for_workers
from nbloader.device import placement as dev
from nbloader.diagnose.bottleneck import judge
from nbloader.engine.config import EngineConfig
from nbloader.engine.engine import IDLE, Engine
from nbloader.engine.inline_engine import LocalEngine
from nbloader.engine.iterator import Consumer, DeviceGroups, EpochIterator, IteratorContext, check_names
from nbloader.loader import config, reruns, torch_compat
from nbloader.loader.checkpoint import Resuming
from nbloader.loader.control import Steering
from nbloader.loader.watching import Watching
from nbloader.metrics.aggregator import Aggregator
from nbloader.metrics.probe import ProcessProbe
from nbloader.sampling import datapipes
from nbloader.sampling.epoch_plan import ChunkSpec, EpochContext, batches_of
from nbloader.sampling.shard_plan import IterableOptions
from nbloader.sampling.source import Made, Source
from nbloader.transport import forkserver, preload
from nbloader.workers.api import PoolKind
from nbloader.workers.fetcher import OnError
from nbloader.workers.process_pool import Processes
from nbloader.workers.thread_pool import Threads

T_co = TypeVar("T_co", covariant=True)
_clock = time.perf_counter_ns

_FIXED = frozenset({
    "dataset", "batch_size", "batch_sampler", "sampler", "drop_last", "last_batch", "workers", "persistent_workers",
    "prefetch", "output", "transport", "device", "auto_reload", "names", "chunk_size",
    "on_error", "on_timeout", "max_restarts", "dispatch",
})  # fmt: skip

_engines: weakref.WeakSet[Engine | LocalEngine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """At interpreter exit: end all workers, quietly."""
    for engine in list(_engines):
        engine.close()


def _kind(workers: str, start_method: str, output: str, transport: str, dataset: Any, *, sharded: bool) -> PoolKind:
    if workers == "thread":
        return Threads(output, sharded)
    if start_method == "forkserver":  # it gets ready while the notebook goes on to the loop
        forkserver.start(preload.expected(dataset, by_torch=transport == "pickle"))
    return Processes(start_method, output, transport)


class DataLoader(Steering, Watching[T_co], Resuming, torch.utils.data.DataLoader[T_co]):
    """Loads batches of samples; a drop-in for `torch.utils.data.DataLoader` that can be watched and steered.

    It is a subclass of torch's loader, since programs ask for one (`isinstance`), but shares no code with it.

    Args:
        dataset: Anything with `__len__` and `__getitem__`: torch datasets, lists, NumPy arrays, tensors. Or an iterable
            dataset: torch's, or anything with `__iter__` only; each worker iterates a shard of its own, which the
            dataset chooses by `get_worker_info()`. Classes and functions of the notebook work with workers too.
        batch_size: Samples a batch; None passes samples unbatched, as torch does.
        shuffle: Draw samples in a new random order each epoch.
        sampler: Gives the indices, one by one. Excludes `shuffle`.
        batch_sampler: Gives lists of indices. Excludes `batch_size`, `shuffle`, `sampler` and `drop_last`.
        num_workers: How many workers; 0 makes batches in this process when they are asked for.
        collate_fn: Makes a batch of a list of samples. The default follows torch's `default_collate` and writes
            straight into shared memory.
        pin_memory: Copy batches to pinned memory; without an accelerator a warning.
        drop_last: Leave out the last batch of an epoch if it is incomplete.
        timeout: Seconds to wait for one batch; 0 waits for ever, and tells in the cell after 30 s what the loop waits
            for. Needs workers.
        worker_init_fn: Called with the worker id in each worker before it begins. Each batch is seeded by its number;
            one that calls `torch.manual_seed` is obeyed instead.
        multiprocessing_context: "forkserver" or "spawn", or a context of `multiprocessing` with that start method.
            "fork" is taken for "forkserver", with a warning.
        generator: A `torch.Generator` for the order and the seeds, as torch's.
        prefetch_factor: Batches asked for ahead, per worker; 2 by default. Left open, small and quick batches are
            asked for further ahead; and while one batch is late, workers go on beyond it, by at most 16 batches each
            and 128 MB.
        persistent_workers: Workers always stay between epochs here. False (as in torch, the default) still makes
            changes of the dataset object between epochs reach them: they are replaced when its pickle differs; and
            each epoch of an iterable dataset begins on a fresh copy.
        pin_memory_device: Deprecated in torch; accepted.
        in_order: False delivers batches as they are made.
        prefetch: Batches asked for ahead in total; wins over `prefetch_factor`. 0 asks for a batch when it is wanted.
            Without workers, a thread makes so many ahead.
        workers: "process", or "thread" for threads of this process: nothing is pickled or copied, and Python code runs
            in one of them at a time, so they are for samples that are waited for or made by native code. Batches are
            the same as with processes; private.py says which few random functions are beyond that.
        output: "torch" for tensors or "numpy" for arrays.
        transport: "shared_memory", or "pickle" for plain pickling through the connection, to compare.
        dispatch: "least_loaded" gives a batch to the worker that has the least to do. "round_robin" as torch: batch i
            of an epoch is made by worker i modulo their number, for datasets that keep something for each worker; a
            slow batch then holds up those behind it.
        device: Where batches shall be: None or "cpu", or an accelerator such as "cuda": then they are uploaded from
            pinned memory on a stream of their own, whether or not `pin_memory` is set. With a list of devices each
            step gives a list of batches, one for each; a last incomplete list follows `last_batch`.
        upload_ahead: Batches uploaded to each device before they are asked for.
        last_batch: What becomes of an incomplete last batch, as in Gluon: "keep", "discard" (torch's `drop_last=True`)
            or "rollover": its samples open the next epoch.
        auto_reload: Begin to make the next epoch's first batches as soon as one has been iterated to its end.
        names: Names of a batch's parts: tuples and lists become dicts.
        chunk_size: Samples of a piece: several workers make one batch at once, each a piece of it, side by side in one
            segment. It must divide `batch_size`; with a `batch_sampler` the last piece may be smaller. A `collate_fn`
            is given all samples, and then runs in this process.
        on_error: What to do when the dataset raises. "raise" raises in the loop. "skip" makes the batch of the other
            samples, and leaves it out if there is none. A function is given (index, exception) and returns a sample
            to take in its place; it runs where the dataset does. What was skipped or replaced is counted, and kept
            with its traceback, in `stats()`.
        on_timeout: "raise" raises `LoaderTimeoutError` with the stack of the worker that holds the batch. "restart"
            replaces that worker and has the batch made again, and raises when three workers did not make it, or one
            took 30 s to start.
        max_restarts: Workers that may die unasked before the loader gives up.

    Raises:
        ValueError: A wrong value; the message names the argument, the value and what is allowed.
        TypeError: A wrong type.
        RuntimeError: `device` is not on this machine.
    """

    _iterator = None
    """Where torch's loader keeps the iterator whose workers persist: programs ask before they shut it down."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        prefetch: int | None = None,
        workers: str = "process",
        output: str = "torch",
        transport: str = "shared_memory",
        dispatch: str = "least_loaded",
        device: Any = None,
        upload_ahead: int = 1,
        last_batch: str | None = None,
        auto_reload: bool = False,
        names: Sequence[str] | None = None,
        chunk_size: int | None = None,
        on_error: OnError = "raise",
        on_timeout: str = "raise",
        max_restarts: int = 100,
    ) -> None:
        dataset, shuffle = datapipes.settle(dataset, shuffle, workers)
        chosen = config.check(
            dataset=dataset, batch_size=batch_size, shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler,
            num_workers=num_workers, workers=workers, collate_fn=collate_fn, drop_last=drop_last,
            last_batch=last_batch, timeout=timeout,
            worker_init_fn=worker_init_fn, multiprocessing_context=multiprocessing_context, generator=generator,
            prefetch_factor=prefetch_factor, persistent_workers=persistent_workers, prefetch=prefetch, output=output,
            transport=transport, dispatch=dispatch, max_restarts=max_restarts, on_error=on_error,
            on_timeout=on_timeout,
        )  # fmt: skip
        self.dataset = dataset
        self._num_workers = num_workers = chosen.num_workers
        self._prefetch_factor = chosen.prefetch_factor
        self._iterable = chosen.iterable
        self._promised: int | None = None  # len() of an iterable dataset, once somebody asked for len(loader)
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.workers = workers
        self.multiprocessing_context = chosen.multiprocessing_context
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.drop_last = chosen.last_batch == "discard"
        self.batch_size = chosen.batch_size
        self._device, self._devices = dev.check_devices(device, output)
        self._names = check_names(names)
        self._chunk = check_chunk(
            chunk_size, batch_size=batch_sampler.batch_size if isinstance(batch_sampler, Source) else chosen.batch_size,
            batch_sampler=batch_sampler, iterable=chosen.iterable,
        )  # fmt: skip
        self.sampler, self.batch_sampler = chosen.samplers(generator, len(self._devices) or 1)
        default = theirs.default_convert if self.batch_sampler is None else theirs.default_collate
        self.collate_fn: Callable[[Any], Any] = default if collate_fn is None else collate_fn
        self._on_error = on_error
        self._output = output
        self._placer = dev.device_transfer(
            self._devices or [self._device], pin=dev.check_pin(pin_memory), ahead=upload_ahead
        )
        self.events = ev.EventBus()
        """The event bus: `loader.events.subscribe(...)`, `loader.events.batches()`."""
        self._fold = Aggregator(judge)
        self.events.subscribe(self._fold.update)
        self._probe = ProcessProbe()
        self._iterations = 0
        self._auto_reload = auto_reload
        self._ahead = None
        # Lightning, and from_torch(), make loaders like this one of what they find in vars(loader).
        vars(self).update(
            num_workers=num_workers, prefetch_factor=prefetch_factor, prefetch=prefetch, output=output,
            transport=transport, device=device, last_batch=last_batch, auto_reload=auto_reload, names=names,
            chunk_size=chunk_size, on_error=on_error, on_timeout=on_timeout, max_restarts=max_restarts,
            dispatch=dispatch,
        )  # fmt: skip
        streaming = None
        if self._iterable:
            streaming = IterableOptions(
                self.drop_last, fresh=num_workers > 0 and not persistent_workers, alone=not num_workers,
                prepare=datapipes.preparation(dataset),
            )  # fmt: skip
        if num_workers == 0 and not prefetch:
            self._engine = LocalEngine(
                self.events, batched=self.batch_sampler is not None, output=output, streaming=streaming
            )
        else:
            torch_compat.warn_of_a_crowd(num_workers)
            start_method = torch_compat.start_method(chosen.multiprocessing_context)
            self._engine = Engine(
                self.events,
                EngineConfig(
                    num_workers=num_workers or 1,
                    prefetch_factor=chosen.prefetch_factor or 0,
                    prefetch=chosen.prefetch,
                    adapts=prefetch is None and prefetch_factor is None and (in_order or dispatch != "round_robin"),
                    kind=_kind(
                        workers if num_workers else "thread",
                        start_method,
                        output,
                        transport,
                        dataset,
                        sharded=streaming is not None and not streaming.alone,
                    ),
                    in_turn=dispatch == "round_robin",
                    in_order=in_order,
                    timeout=timeout,
                    on_timeout=on_timeout,
                    max_restarts=max_restarts,
                    idle=None if persistent_workers else IDLE,
                    options={
                        "batched": self.batch_sampler is not None,
                        "output": output,
                        "transport": transport,
                        "seed": 0,
                        "streaming": streaming,
                    },
                ),
            )
        self._finalizer = weakref.finalize(self, self._engine.close_soon)
        self._finalizer.atexit = False  # then all are closed, by _close_all
        _engines.add(self._engine)
        reruns.supersede_older(self._engine)
        self._own = frozenset(vars(self))

    @classmethod
    def from_source(cls, source: Callable[[int], Sequence[Any]], batch_size: int, **arguments: Any) -> DataLoader[Any]:
        """Make a loader over a source: a function that says what to make next, as DI-engine's.

        The source is called on a thread of its own, ahead of the loop by the prefetch window and two batches. One
        iterator goes on until the source raises StopIteration.

        Args:
            source: Called with `batch_size`; gives a list: functions, which are called in the workers and give a sample
                each; or samples that are ready; or both.
            batch_size: Samples a batch.
            arguments: Arguments of this class, such as `num_workers=4`; not those that choose samples.

        Raises:
            TypeError: `source` cannot be called.
            ValueError: A wrong value.
        """
        if not callable(source):
            raise TypeError(f"source must be callable with a batch size, not {type(source).__name__}: {source!r}")
        config.check_source(batch_size, arguments)
        return cls(Made(), batch_sampler=Source(source, batch_size), **arguments)

    @classmethod
    def from_torch(cls, loader: torch.utils.data.DataLoader[T_co], **changes: Any) -> DataLoader[T_co]:
        """Make a loader that gives what an existing loader of torch gives.

        One that Accelerate made is a shell around torch's loader, for placement, gradient accumulation and
        synchronized shuffling: there the loader inside is exchanged, and the same shell is given back.

        Args:
            loader: torch's loader, or what Lightning or Accelerate made of one. Its dataset, samplers and functions
                are used on.
            changes: Arguments of this class that shall differ, such as `num_workers=4`.

        Raises:
            TypeError: It is no loader of torch.
        """
        inside = getattr(loader, "base_dataloader", None)
        if inside is not None:
            loader.base_dataloader = cls.from_torch(inside, **changes)
            return loader  # type: ignore[return-value]
        if not isinstance(loader, torch.utils.data.DataLoader):
            raise TypeError(f"from_torch takes a torch.utils.data.DataLoader, not {type(loader).__name__}: {loader!r}")
        return cls(**{**torch_compat.arguments_of(loader), **changes})

    # ---- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override]
        """Begin an epoch: workers start and the first batches are asked for at once.

        Raises:
            LoaderClosedError: After `close()`.
            DatasetTransferError: The dataset cannot be sent to workers.
            ValueError: The dataset is empty.
        """
        self._check_open()
        if not self._iterable:
            config.check_not_empty(self.dataset, self.sampler)
        ahead = self._take_ahead()
        epoch = self._make_epoch() if ahead is None else ahead
        self._draw = epoch.plan
        epoch.begin(Consumer(self.num_workers, self.__len__, self._epoch_over))
        return DeviceGroups(epoch, len(self._devices)) if self._devices else epoch  # type: ignore[return-value]

    def _make_epoch(self) -> EpochIterator[T_co]:
        run, self._iterations = self._iterations, self._iterations + 1
        plan = self._begin_draw()
        if not (self.persistent_workers and self._engine.loaded) and self._load():
            self._engine.replace_all()
        engine: Any = self._engine
        context = IteratorContext(
            engine, self.events, self._placer, batched=self.batch_sampler is not None, names=self._names
        )
        return EpochIterator(context, run, plan)

    def _epoch_context(self) -> EpochContext:
        """What an epoch that begins now depends on."""
        chunk_spec = None
        if self._chunk is not None:
            chunk_spec = ChunkSpec(self._chunk, collate_for_workers(self.collate_fn, batched=True))
        return EpochContext(
            dataset=self.dataset,
            iterable=self._iterable,
            index_sampler=self._index_sampler,
            batched=self.batch_sampler is not None,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            generator=self.generator,
            in_order=self.in_order,
            num_shards=self.num_workers,
            chunk_spec=chunk_spec,
            promised_length=self._promised,
        )

    def __len__(self) -> int:
        """Batches an epoch (lists of them where there are several devices), as torch counts them.

        Those of an iterable dataset are what its `len()` says.

        Raises:
            TypeError: The sampler, or the iterable dataset, has no `len()`.
        """
        group = len(self._devices) or 1
        if self._iterable:
            self._promised = len(self.dataset)
            batches = batches_of(self._promised, self.batch_size, drop_last=self.drop_last)
        else:
            batches = len(self._index_sampler)
        return (batches + group - 1) // group

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but for those that the loader was made of.

        Raises:
            ValueError: It would change nothing any more (as torch's DataLoader says of most of them).
        """
        if name in _FIXED and "_engine" in self.__dict__:
            instead = "use loader.reload(dataset)" if name == "dataset" else "make a new loader"
            raise ValueError(f"{name} attribute should not be set after DataLoader is initialized: {instead}")
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copying and pickling give a loader of the same arguments, with workers of its own, that has begun nothing."""
        added = {name: value for name, value in vars(self).items() if name not in self._own and name[:1] != "_"}
        return torch_compat.make, (type(self), torch_compat.arguments_of(self)), added

    def __repr__(self) -> str:
        """One line."""
        return f"<nbloader.DataLoader of {type(self.dataset).__name__}, num_workers={self.num_workers}>"

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers, now. The loader cannot be used any more; closing twice is harmless."""
        self.clean()
        if not self._engine.closed:
            self._engine.close()
            if isinstance(self.batch_sampler, Source):
                self.batch_sampler.close()
            if self._placer is not None:
                self._placer.close()
            self.events.publish(ev.LoaderClosed(_clock()))
        self._finalizer.detach()

    def __enter__(self) -> DataLoader[T_co]:
        """Give the loader itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close it."""
        self.close()
