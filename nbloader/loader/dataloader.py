"""The public `DataLoader`. Start reading here.

    sampler -> dispatcher -> worker: fetch, collate into shared memory -> receive -> reorder -> [pin] -> [upload] -+
                  ^                                                                                                v
                  +------------------------- prefetch window <------------------------------------------- consumer

    sampler     the indices of each batch (sampling), requested on the consumer's thread
    dispatcher  which worker produces which batch, retries, window, order: a state machine without I/O (scheduler)
    worker      a process or a thread that fetches and collates (workers, batch, shm)
    receive     connections, deaths, output: one selector (workers.process_pool, transport)
    engine      the thread that owns all this, the worker group, thread-safe commands (engine); without workers, a
                loop that produces each batch when it is asked for (engine.local_engine)
    consumer    the iterator (engine.iterator)

Every stage records its times. When the consumer returns for the next batch, the record is published on the event bus
(events); statistics (metrics), traces (report) and the dashboard are made from it.

`DataLoader` connects the parts and delegates to them: `LoaderConfig` holds the arguments, `Control` passes commands to
the engine, `Checkpoint` saves and restores the position, and `Monitor` aggregates events.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from nbloader import events as ev
from nbloader._platform import usable_cpus
from nbloader._util.current_class import with_current_class
from nbloader._util.replaceable import ReplaceableProperty
from nbloader._util.upgrades import warn_of_upgrades
from nbloader._util.user_warning import warn
from nbloader.batch.rows import is_in_memory
from nbloader.batch.torch_collate import collate_for_workers, default_function
from nbloader.device import placement
from nbloader.device.transfer import DeviceTransfer
from nbloader.distributed import FOLDER
from nbloader.engine import torch_names
from nbloader.engine.config import EngineConfig
from nbloader.engine.engine import Engine
from nbloader.engine.hooked_iterator import HookedEpochIterator
from nbloader.engine.idle import IDLE_TIMEOUT
from nbloader.engine.iterator import Consumer, DeviceGroups, EpochIterator, IteratorContext
from nbloader.engine.local_engine import AnyEngine, LocalEngine
from nbloader.errors import ReplayError
from nbloader.loader import config as cfg
from nbloader.loader import reruns, torch_compat
from nbloader.loader.bypassed import bypassed_method
from nbloader.loader.checkpoint import Checkpoint, State
from nbloader.loader.config import LoaderConfig
from nbloader.loader.control import Control
from nbloader.loader.monitor import Monitor
from nbloader.loader.replay import EpochHistory, ReplayedBatch, ReplaySetup, find_delivered
from nbloader.loader.sent_attributes import SentAttributes
from nbloader.metrics.snapshot import Point, Snapshot
from nbloader.report.trace import Trace
from nbloader.sampling import datapipes
from nbloader.sampling.epoch_order import EpochOrder
from nbloader.sampling.epoch_plan import ChunkSpec, EpochContext, batches_of
from nbloader.sampling.samplers import warn_if_no_samples
from nbloader.sampling.shard_plan import IterableOptions
from nbloader.sampling.source import SourceDataset, SourceSampler
from nbloader.scheduler.gate import Gate
from nbloader.workers.fetcher import is_async
from nbloader.workers.in_process import SampleDelivery, private_generators
from nbloader.workers.registry import InterchangeableKind, Workers, kind_class
from nbloader.workers.spec import WorkerSpec

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812  a class in spite of its name

    from nbloader.dashboard import Dashboard
    from nbloader.dashboard.page import Report
    from nbloader.diagnose.what_if import Prediction
    from nbloader.diagnose.without_line import LineTime
    from nbloader.explorer.widget import Explorer
    from nbloader.loader.tuning import Tuning
    from nbloader.metrics.control import LoaderControl
    from nbloader.metrics.hot_lines import HotLine, HotLines
    from nbloader.recording.recorder import Recorder
    from nbloader.remedies.results import Remedies

T_co = TypeVar("T_co", covariant=True)
_clock = time.perf_counter_ns

_engines: weakref.WeakSet[AnyEngine] = weakref.WeakSet()
_NUMBERS_WARNED_OF: set[str] = set()
"""The warnings of more worker processes than cores that this process has shown."""


@atexit.register
def _close_all() -> None:
    """End all workers silently when the interpreter exits."""
    for engine in list(_engines):
        engine.close()


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """Loads batches of samples; a drop-in replacement for `torch.utils.data.DataLoader` with a live view and controls.

    It is a subclass of torch's loader, because programs check for that with `isinstance`, but shares no code with it.

    The type parameter is the type of the dataset's samples, as in torch.

    Args:
        See `nbloader.loader.config.LoaderConfig`, from which this section is made.

    Raises:
        ValueError: A wrong value; the message names the argument, the value and what is allowed.
        TypeError: A wrong type, or an argument that does not exist.
        RuntimeError: `device` does not exist on this machine.
    """

    _iterator: Any = None
    """The iterator with persistent workers, in torch's loader. Programs look for it before they shut it down.

    nbloader's own iterator does not own its workers and is not kept here. A torch iterator, which `_get_iterator` of a
    subclass may return (litdata's does), is kept and reset for each epoch, as in torch.
    """

    dataset: Any
    batch_size: int | None
    drop_last: bool
    generator: torch.Generator | None
    in_order: bool
    last_batch: str | None
    prefetch: int | None
    persistent_workers: bool
    worker_init_fn: Callable[[int], None] | None

    @cfg.constructor(LoaderConfig[T_co])
    def __init__(self, config: LoaderConfig[Any]) -> None:
        warn_of_upgrades()
        vars(self).update(config.attributes())  # public ones are arguments: ignite makes loaders from vars(loader)
        self._config = config
        self._dataset_kind = _DatasetKind.Iterable if config.iterable else _DatasetKind.Map
        sampler, batch_sampler = config.make_samplers()
        vars(self).update(sampler=sampler, batch_sampler=batch_sampler)
        self.collate_fn = config.collate_fn or default_function(batched=batch_sampler is not None)
        self.multiprocessing_context = config.multiprocessing_context  # a property of torch's loader
        self._IterableDataset_len_called: int | None = None  # type: ignore[assignment]
        """`len()` of an iterable dataset, if `len(loader)` was ever called. The name is torch's: litdata reads it."""
        self._check_number_of_processes()
        engine = self._parts.engine
        reruns.supersede_older(engine)
        self.__initialized = True  # torch's name: a program that clears it may assign the samplers

    @functools.cached_property
    def _parts(self) -> _Parts:
        """State that belongs to this object alone. A copy or an unpickled loader creates its own when it needs it."""
        config = self._config
        bus = ev.EventBus()
        transfer = self._make_transfer()
        engine_config = self._engine_config()
        engine = self._make_engine(bus, engine_config, Gate())
        loader_ref = weakref.ref(self)  # the monitor does not keep the loader alive

        def roots() -> tuple[Any, ...]:
            loader = loader_ref()
            return () if loader is None else (loader.dataset, loader.collate_fn)

        return _Parts(
            bus=bus,
            transfer=transfer,
            pins=self.pin_memory,
            engine_config=engine_config,
            engine=engine,
            finalizer=self._close_with(engine),
            control=Control(engine, self.num_workers),
            checkpoint=Checkpoint(config),
            monitor=Monitor(bus, engine, transfer, roots, self._index_sampler),
            history=EpochHistory(),
        )

    def _make_engine(self, bus: ev.EventBus, config: EngineConfig, gate: Gate) -> AnyEngine:
        torch_compat.warn_of_start_method(self.multiprocessing_context)
        if config.has_workers or config.prefetch or config.concurrency:
            # Without workers, a thread loads ahead or runs an event loop: the consumer's own thread may be running one,
            # as in a notebook.
            return Engine(bus, config, gate)
        return LocalEngine(bus, config.spec, gate, draws_by_worker=config.round_robin)

    def _make_transfer(self) -> DeviceTransfer | None:
        config = self._config
        pin = placement.check_pin(self.pin_memory)
        return placement.device_transfer(list(config.devices), pin=pin, ahead=config.upload_ahead)

    def _close_with(self, engine: AnyEngine) -> weakref.finalize[Any, Any]:
        """Close an engine when this loader is garbage-collected, or when the interpreter exits."""
        finalizer = weakref.finalize(self, engine.close_soon)
        finalizer.atexit = False  # at exit `_close_all` closes every engine
        _engines.add(engine)
        return finalizer

    @property
    def _engine(self) -> AnyEngine:
        return self._parts.engine

    @classmethod
    def from_source(cls, source: Callable[[int], Sequence[Any]], batch_size: int, **arguments: Any) -> DataLoader[Any]:
        """Create a loader over a source, which is a function that decides what to load next, as in DI-engine.

        The source is called on a separate thread, ahead of the loop by the prefetch window and two batches. One
        iterator continues until the source raises StopIteration.

        Args:
            source: A function that is called with `batch_size`. It returns a list of samples, of functions that are
                called in a worker and return a sample, or of both.
            batch_size: Samples per batch.
            arguments: Arguments of this class, such as `num_workers=4`, except those that select samples.

        Raises:
            TypeError: `source` is not callable.
            ValueError: A wrong value.
        """
        cfg.check_source(source, batch_size, arguments)
        functions: Any = SourceDataset()
        return cls(functions, batch_sampler=SourceSampler(source, batch_size), **arguments)

    @classmethod
    def from_torch(cls, loader: torch.utils.data.DataLoader[T_co], **changes: Any) -> DataLoader[T_co]:
        """Create a loader that yields what an existing torch loader yields.

        A loader that Accelerate prepared is a wrapper around torch's loader, for placement, gradient accumulation and
        synchronized shuffling. nbloader replaces the loader inside it, and returns the same wrapper.

        Args:
            loader: A torch loader, or one that Lightning or Accelerate has prepared. Its dataset, samplers and
                functions are reused.
            changes: Arguments of this class to change, such as `num_workers=4`.

        Raises:
            TypeError: `loader` is not a torch loader.
        """
        inside = getattr(loader, "base_dataloader", None)
        if inside is not None:
            loader.base_dataloader = cls.from_torch(inside, **changes)
            return loader  # type: ignore[return-value]
        if not isinstance(loader, torch.utils.data.DataLoader):
            raise TypeError(f"from_torch takes a torch.utils.data.DataLoader, not {type(loader).__name__}: {loader!r}")
        return cls(**{**torch_compat.arguments_of(loader), **changes})

    # ---- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Start an epoch: workers start, and the first batches are requested at once.

        Raises:
            LoaderClosedError: After `close()`.
            DatasetTransferError: The dataset cannot be sent to workers.
            TypeError: The dataset gives no samples, or has no length where one is needed.
        """
        if self._iterator is not None:  # torch's own, as below
            self._iterator._reset(self)
            return self._iterator  # type: ignore[no-any-return]
        iterator: Any = self._get_iterator()
        of_torch = isinstance(iterator, _BaseDataLoaderIter) and not isinstance(iterator, EpochIterator)
        if of_torch and self.persistent_workers:
            self._iterator = iterator
        return iterator  # type: ignore[no-any-return]

    def _get_iterator(self) -> Iterator[Any]:  # type: ignore[override]
        """Start an epoch. As with torch's loader, subclasses may override this method or `__iter__`."""
        self._parts.control.check_open()
        drawn_from = getattr(self._index_sampler, "sampler", self._index_sampler)  # a batch sampler may have none
        cfg.check_dataset(self.dataset, drawn_from, iterable=self._is_iterable)
        self._check_number_of_processes()
        if not self._parts.iterations and self._auto_collation and not self._is_iterable:
            self._warn_of_bypassed_method()
        with self._parts.starting:
            self._parts.monitor.keep_verdict()
            self._update_engine()
            prefetched = self._take_prefetched()
            epoch = self._make_epoch() if prefetched is None else prefetched
            self._parts.checkpoint.plan = epoch.plan
            epoch.begin(Consumer(self.num_workers, self.__len__, self._epoch_over))
            if os.environ.get(FOLDER):
                from nbloader.distributed.reporter import follow

                follow(cast("LoaderControl", self))
        group = self._config.batches_per_step
        return epoch if group is None else DeviceGroups(epoch, group)

    def _warn_of_bypassed_method(self) -> None:
        bypassed = bypassed_method(self.dataset)
        if bypassed:
            warn(bypassed)

    def __len__(self) -> int:
        """Return the number of batches per epoch, as in torch; with several devices, the number of lists of batches.

        For an iterable dataset, it is derived from the dataset's `len()`.

        Raises:
            TypeError: The sampler, or the iterable dataset, has no `len()`.
        """
        if self._is_iterable:
            self._IterableDataset_len_called = len(self.dataset)
            batches = batches_of(self._IterableDataset_len_called, self.batch_size, drop_last=self.drop_last)
        else:
            batches = len(self._index_sampler)
        group = self._config.batches_per_step or 1
        return (batches + group - 1) // group

    @property
    def _is_iterable(self) -> bool:
        """Whether the dataset can only be iterated. Decided by the first dataset, as in torch."""
        return self._dataset_kind == _DatasetKind.Iterable

    def refresh(self) -> None:
        """Start loading the first batches of the next epoch now, as Gluon's loader does.

        The next `iter(loader)` uses them. Its order and seed are drawn now, from the samplers and generators. If
        nothing can be loaded ahead (`num_workers=0`, `prefetch=0`), this is a no-op.

        Raises:
            LoaderClosedError: After `close()`.
        """
        parts = self._parts
        parts.control.check_open()
        with parts.starting:
            self._update_engine()
            if parts.engine.prefetches and parts.prefetched is None:
                parts.prefetched = self._make_epoch()
                parts.prefetched.prefetch()
                parts.prefetched_with = None if self._config.kind.in_process else SentAttributes(self.dataset)

    def clean(self) -> None:
        """Discard the epoch that `refresh()` or `auto_reload` has started, as Gluon's loader does."""
        prefetched, self._parts.prefetched = self._parts.prefetched, None
        if prefetched is not None:
            prefetched.drop()

    def _make_epoch(self) -> EpochIterator[Any]:
        parts = self._parts
        stays = self.persistent_workers and parts.engine.loaded
        if stays and parts.sent is not None:
            parts.sent.warn_of_changes()
        epoch, parts.iterations = parts.iterations, parts.iterations + 1
        plan = parts.checkpoint.plan_epoch(self._epoch_context())
        parts.history.add(epoch, plan.order)
        if not stays and self._load():
            parts.engine.replace_all()
        context = IteratorContext(
            parts.engine, parts.bus, parts.transfer, batched=self._auto_collation, names=self._config.names,
            debuggable=not parts.engine_config.concurrency, index_sampler=self._index_sampler,
        )  # fmt: skip
        torch_names.warn_of_unused_hooks()
        if torch_names.has_hooks():
            return HookedEpochIterator(context, epoch, plan, self)
        return EpochIterator(context, epoch, plan)

    def _take_prefetched(self) -> EpochIterator[Any] | None:
        """Take the epoch that was started early; None if there is none, or if the dataset has changed since."""
        parts = self._parts
        if parts.prefetched is not None and not self.persistent_workers:
            changed = parts.prefetched_with is not None and parts.prefetched_with.have_changed()
            if self._load() or changed:
                self.clean()
                parts.engine.replace_all()
        prefetched, parts.prefetched = parts.prefetched, None
        return prefetched

    def _epoch_context(self) -> EpochContext:
        """Collect what an epoch that starts now depends on."""
        config = self._config
        return EpochContext(
            dataset=self.dataset,
            iterable=self._is_iterable,
            index_sampler=self._index_sampler,
            batched=self._auto_collation,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            generator=self.generator,
            in_order=self.in_order,
            num_shards=self.num_workers,
            chunk_spec=self._chunk_spec(),
            promised_length=self._IterableDataset_len_called,
            index_arrays=config.chunk is None and self._gathers() and not torch_names.has_hooks(),
        )

    def _chunk_spec(self) -> ChunkSpec | None:
        chunk = self._config.chunk
        return None if chunk is None else ChunkSpec(chunk, collate_for_workers(self.collate_fn, batched=True))

    def _gathers(self) -> bool:
        """Whether batches are gathered by indexing the dataset's arrays."""
        batched = self.batch_sampler is not None
        return batched and is_in_memory(self.dataset) and collate_for_workers(self.collate_fn, batched=True) is None

    def _epoch_over(self, empty: bool) -> None:
        """Handle the end of an epoch that was iterated to its end.

        Args:
            empty: Whether the epoch had no batches.
        """
        if empty:
            warn_if_no_samples(dataset=self.dataset, sampler=self.sampler, batch_sampler=self.batch_sampler)
        notify = getattr(self.batch_sampler, "epoch_over", None)
        if notify is not None:
            notify()
        if self._config.auto_reload and not self._parts.engine.closed:
            self.refresh()

    # ---- the engine -------------------------------------------------------------------------------------------------

    def _engine_config(self) -> EngineConfig:
        """Compute the engine's configuration from the attributes; as in torch, they may be assigned between epochs."""
        config, num_workers, persistent = self._config, self.num_workers, self.persistent_workers
        ends_with_epoch = num_workers > 0 and not persistent
        iterable = None
        if self._is_iterable:
            iterable = IterableOptions(
                self.drop_last, fresh=ends_with_epoch, alone=not num_workers,
                prepare=datapipes.preparation(self.dataset),
            )  # fmt: skip
        concurrency = config.concurrency if iterable is None and is_async(self.dataset) else 0
        size = getattr(self.batch_sampler, "batch_size", None) if self._auto_collation else 1
        return EngineConfig(
            num_workers=num_workers or 1,
            prefetch_factor=(self.prefetch_factor or 0) if num_workers else 0,
            prefetch=self.prefetch,
            adaptive_window=config.adapts_window(self._given("prefetch_factor"), self.prefetch),
            strict_window=config.sampler_may_learn,
            has_workers=num_workers > 0,
            spec=WorkerSpec(
                kind=config.workers if num_workers else "thread",
                batched=self._auto_collation,
                iterable=iterable,
                start_method=torch_compat.start_method(self.multiprocessing_context),
                may_heal=torch_compat.may_heal(self.multiprocessing_context),
                **config.values_for(WorkerSpec),
            ),
            concurrency=concurrency,
            batch_size=size if concurrency and isinstance(size, int) and size > 0 else None,
            round_robin=config.dispatch == "round_robin",
            in_order=self.in_order,
            timeout=self.timeout,
            on_timeout=config.on_timeout,
            max_restarts=config.max_restarts,
            persistent=not ends_with_epoch,
            idle_timeout=None if persistent else IDLE_TIMEOUT,
        )

    def _check_number_of_processes(self) -> None:
        """Warn, as torch does, if there are more worker processes than cores; once in a process for each number.

        torch's warning points to a line of torch, so Python shows it once. This one points to a line of the user, and
        would otherwise stand above the dashboard of each loader. A number that `tune()` tries, or that the user chose
        on the dashboard, gets no warning: what it gains is measured.
        """
        cores = usable_cpus()
        parts, number = self._parts, self.num_workers
        if not self._config.kind.local_processes or number <= cores or number == parts.warned_of:
            return
        parts.warned_of = number
        if self.tuning is not None:
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.check_worker_number_rationality()
        for warning in caught:  # torch's points to the line that calls it
            text = str(warning.message)
            if text not in _NUMBERS_WARNED_OF:
                _NUMBERS_WARNED_OF.add(text)
                warn(text)

    def _update_engine(self) -> None:
        """Replace the engine if attributes that it was created from have been assigned since, or if it is taken.

        Iterators of the old engine continue, as in torch, with the workers that they have.
        """
        parts, config = self._parts, self._engine_config()
        if self.pin_memory != parts.pins:
            self.clean()
            parts.pins, parts.transfer = self.pin_memory, self._make_transfer()
            parts.monitor.follow(parts.engine, parts.transfer)
        if config == parts.engine_config and (parts.prefetched is not None or not parts.engine.is_taken()):
            return
        self.clean()
        old, parts.engine_config = parts.engine, config
        parts.engine = engine = self._make_engine(parts.bus, config, old.gate)
        engine.callbacks = old.callbacks
        parts.control = Control(engine, self.num_workers)
        parts.monitor.follow(engine, parts.transfer)
        reruns.succeed(old, engine)
        parts.finalizer.detach()
        parts.finalizer = self._close_with(engine)
        old.retire()

    # ---- the dataset ------------------------------------------------------------------------------------------------

    def reload(self, dataset: Any = None, *, keep: bool = True) -> None:
        """Replace the workers, and give the new ones a new dataset or the current definition of its class.

        During an epoch, the change takes effect after the batches that are already produced, at most the prefetch
        window. Without workers, or with `keep=False`, it takes effect with the next batch.

        Args:
            dataset: The new dataset, of the same length if an epoch is in progress. None keeps the old object and
                gives it the current definition of its class (from a notebook cell or a reloaded module).
            keep: Whether batches that are already produced are delivered. With False, they are produced again with
                the new dataset.

        Raises:
            DatasetTransferError: The dataset cannot be sent to workers. The loader keeps the old one.
            LoaderClosedError: After `close()`.
        """
        self._parts.control.check_open()
        if dataset is None:
            dataset = with_current_class(self.dataset)
        old, vars(self)["dataset"] = self.dataset, dataset
        try:
            self._load()
        except BaseException:
            vars(self)["dataset"] = old
            raise
        self.clean()
        self._parts.engine.replace_all(keep=keep)
        if getattr(self.sampler, "data_source", None) is old:  # torch's samplers ask it for its length
            self.sampler.data_source = dataset  # type: ignore[attr-defined]
        self._parts.bus.publish(ev.DatasetReloaded(_clock()))

    def _load(self) -> bool:
        """Give the engine the dataset and the functions that workers need. Returns whether they have changed."""
        collate = self._worker_collate_fn()
        differs = self._parts.engine.load(self.dataset, collate, self.worker_init_fn, self._config.on_error)
        copied = self.persistent_workers and not self._config.kind.in_process
        self._parts.sent = SentAttributes(self.dataset) if copied else None
        return differs

    def _worker_collate_fn(self) -> Callable[[list[Any]], Any] | None:
        """Return the collate function of the workers; None for nbloader's own."""
        collate = collate_for_workers(self.collate_fn, batched=self._auto_collation)
        if collate is not None and self._config.chunk is not None:
            return list  # the consumer collates all chunks at once
        return collate

    # ---- control ----------------------------------------------------------------------------------------------------

    @property
    def num_workers(self) -> int:
        """Number of workers. Assign another number at any time, also during an epoch and from any thread.

        If a worker is removed, other workers produce the batches that it was assigned. It ends after its current
        sample, as with `restart_workers`. In workers that already run, `get_worker_info().num_workers` keeps its value.
        A change from or to 0 takes effect with the next epoch.

        Raises:
            ValueError: It is negative.
            TypeError: Not an int.
        """
        return self._given("num_workers")  # type: ignore[no-any-return]

    @num_workers.setter
    def num_workers(self, value: int) -> None:
        if not self.__initialized:
            vars(self)["num_workers"] = value  # a subclass that has not called `__init__` yet
            return
        self._resize(value, patient=False)

    def _resize(self, value: int, *, patient: bool) -> None:
        """Change the number of workers.

        Args:
            value: The new number.
            patient: Whether workers that are removed may take any time for their current sample. Nobody has said that
                they hang if `tune` removes them, and they may hold a lock.
        """
        value = self._parts.control.check_num_workers(value)
        if value and self._parts.engine_config.has_workers:
            self._parts.control.resize(value, patient=patient)
        vars(self)["num_workers"] = value

    @property
    def prefetch_factor(self) -> int | None:
        """Batches requested ahead, per worker. It can be assigned at any time, and is None without workers.

        An assigned number also replaces `prefetch` and an adaptive window. None restores the default.

        Raises:
            ValueError: It is negative.
            TypeError: Neither an int nor None.
        """
        given = self._given("prefetch_factor")
        return cfg.DEFAULT_PREFETCH_FACTOR if given is None and self.num_workers else given

    @prefetch_factor.setter
    def prefetch_factor(self, value: int | None) -> None:
        if not self.__initialized:
            vars(self)["prefetch_factor"] = value
            return
        value = self._parts.control.check_prefetch_factor(value)
        replaces = value is not None and self.num_workers > 0
        self._set_window(value, None if replaces else self.prefetch)

    def _set_window(self, prefetch_factor: int | None, prefetch: int | None) -> None:
        """Change the prefetch window, as with the loader's arguments of these names."""
        vars(self).update(prefetch_factor=prefetch_factor, prefetch=prefetch)
        adaptive = self._config.adapts_window(prefetch_factor, prefetch)
        self._parts.control.set_window(prefetch_factor, prefetch, adaptive=adaptive)
        self._parts.monitor.window_changed()

    def _given(self, name: str) -> Any:
        """Return the value of an argument that is exposed as a property.

        Raises:
            AttributeError: There is no value, because `__init__` was not called, as in the wrappers of Accelerate.
        """
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None

    def restart_workers(self, ids: int | Iterable[int] | None = None) -> None:
        """Replace workers with new ones, at any time and from any thread; returns at once.

        Other workers produce the batches that were assigned to them. The consumer still gets every batch once and in
        order. The new workers have the notebook's state from the beginning of the epoch, as the others have. To give
        them the current state, call `reload()`. Without workers, this is a no-op.

        The new workers start at once. An old worker ends after its current sample, and so releases a lock that the
        sample holds. A worker is killed at once if it is stuck, which means that its batch has taken more than 2 s and
        ten times as long as usual. Before the first batch has arrived, a worker is killed after 30 s.

        Args:
            ids: A worker id, or several; None for all workers.

        Raises:
            ValueError: There is no such worker.
            TypeError: It is not a worker id.
            LoaderClosedError: After `close()`.
        """
        self._parts.control.restart_workers(ids)

    def stack(self, worker: int) -> str:
        """Return the current Python stack of a worker, innermost frame first, even while it hangs in C code.

        Thread-safe. Frames of nbloader that call the dataset's code are omitted, and a line says how many. The stack of
        a worker that executes no such code is complete.

        The request to a worker process is a signal. It interrupts C functions that sleep and do not resume by
        themselves (the C library's `sleep`, not Python's).

        Args:
            worker: A worker id. Without workers, pass 0 for the stack of the main thread.

        Raises:
            ValueError: There is no such worker.
            NbloaderError: The worker is not running, or did not respond within two seconds.
        """
        return self._parts.control.stack(worker)

    def pause(self) -> None:
        """Stop delivering and dispatching until `resume()`; workers finish what they are processing. Thread-safe.

        Raises:
            LoaderClosedError: After `close()`.
        """
        self._parts.control.pause()

    def resume(self) -> None:
        """Continue after `pause()` or `step()`. Thread-safe.

        Raises:
            LoaderClosedError: After `close()`.
        """
        self._parts.control.resume()

    def step(self) -> None:
        """Pause, if not paused already, and deliver exactly one batch to the consumer. Thread-safe.

        The prefetch window advances by that batch. Nothing else moves until the next `step()` or `resume()`.

        Raises:
            LoaderClosedError: After `close()`.
        """
        self._parts.control.step()

    def on_wait(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call a function from inside `__next__`, on the consumer's thread, at most every 100 ms.

        The function is called while the consumer waits, and also when batches are ready at once, so that a front end
        can handle its messages while a cell is busy. It must be quick and must not iterate over the loader. If it
        raises, the error is logged and the function is unregistered.

        Returns:
            A function that unregisters it.
        """
        return self._parts.engine.callbacks.add(callback)

    # ---- replaying a batch ------------------------------------------------------------------------------------------

    def replay(self, epoch: int | ev.BatchRecord, batch: int | None = None) -> ReplayedBatch:
        """Reproduce a delivered batch in this process: the same bytes, from the same seeds.

            loader.replay(2, 117).batch           # batch 117 of epoch 2, as it was delivered
            loader.replay(2, 117).sample(3)       # its sample at position 3, as the dataset returned it
            loader.replay(loader.events.batches()[-1]).batch

        The last 256 epochs of this loader can be replayed, regardless of how many workers there were and what happened
        to them. This method can be called at any time, even inside the loop, and affects neither the random generators
        of this process nor the current epoch. The batch is on the CPU, even if the loader uploads batches to a device.

        The dataset and its functions run as they are now: if they have changed since, the result changes, too. A
        warning says so if the batch differs from what was delivered, for example because samples draw from a generator
        that the operating system seeds, such as `np.random.default_rng()` in `__getitem__`.

        The indices are drawn again from copies of the samplers. Custom samplers may depend on anything, so their
        indices are logged instead (the last million).

        Iterable datasets and sources cannot be replayed, nor can datasets or a `worker_init_fn` with random generators
        of their own, since their samples depend on all that were read before.

        Args:
            epoch: Number of the epoch, as in `BatchRecord.epoch`; or the record of a batch.
            batch: Number of the batch, as in `BatchRecord.index`. A batch that is not delivered yet is allowed, except
                with custom samplers. With a list of devices, each batch of a step counts.

        Returns:
            The batch. It is produced when `.batch` or `.sample()` is first used.

        Raises:
            ReplayError: The batch is no longer known, or cannot be reproduced. The message says why.
            TypeError: No batch number is given.
        """
        if isinstance(epoch, ev.BatchRecord):
            record = epoch
            epoch, batch = record.epoch, record.index
        if batch is None:
            raise TypeError("replay() takes the numbers of an epoch and of a batch, or a BatchRecord")
        delivered = find_delivered(self._parts.bus.recent(), epoch, batch)
        return ReplayedBatch(self._replay_setup(), epoch, batch, self._order(epoch), delivered)

    def debug(
        self, index: Any = None, *, epoch: int | None = None, batch: int | None = None, post_mortem: bool = False
    ) -> None:
        """Reproduce a sample in IPython's debugger or pdb, with the same seed and data as in the worker.

            loader.debug(123)                               # sample 123, as in the newest epoch
            loader.debug(epoch=2, batch=7, index=123)       # as the message of an error says
            loader.debug(epoch=2, batch=7)                  # the whole batch, until something raises

        The debugger stops at the first line of the dataset's `__getitem__` (of the inner dataset, for torch's `Subset`
        and `ConcatDataset`), and again at the line that raises, if there is one: enter `c` to continue to it, or `q` to
        quit. The preceding samples of the batch are produced first, since they draw from the same generators.
        Afterwards, the random generators of this process are restored.

        As with `replay`, the dataset runs as it is now. If you have edited its class in a cell, call `reload()` first.

        Args:
            index: Dataset index of the sample. Without it, the whole batch is produced and collated, and the debugger
                stops at the line that raises.
            epoch: Number of the epoch; the newest by default.
            batch: Number of the batch; by default the first batch of the epoch with this sample.
            post_mortem: Whether to stop only at the line that raises.

        Raises:
            ReplayError: See `replay`; or the sample is not in this batch, or the dataset is asynchronous.
            TypeError: Neither a sample nor a batch is given.
        """
        if index is None and batch is None:
            raise TypeError("debug() takes the index of a sample, or the number of a batch")
        if epoch is None:
            epoch = self._parts.history.newest
        order = self._order(epoch)
        if batch is None:
            with private_generators():
                batch = order.find(index, batched=self._auto_collation)
            if batch is None:
                raise ReplayError(f"epoch {epoch} has no sample {index!r} that nbloader knows of")
        ReplayedBatch(self._replay_setup(), epoch, batch, order).debug(index, post_mortem=post_mortem)

    def deliveries(self, index: Any, limit: int = 4) -> list[SampleDelivery]:
        """Return how a sample was delivered in the last epochs, newest first: epoch, batch, position and seed.

        ::

            for delivery in loader.deliveries(4711):
                loader.replay(delivery.epoch, delivery.batch).sample(delivery.position)

        Only the batches of the newest 10,000 events are searched, which the event bus keeps. If an epoch delivered the
        sample several times, only the first delivery counts.

        Args:
            index: Dataset index of the sample.
            limit: Number of epochs to search.

        Raises:
            ReplayError: Batches of this loader cannot be replayed, or their samples are fetched together. The
                message says why.
        """
        numbers: dict[int, set[int]] = {}
        for record in self._parts.bus.batches():
            numbers.setdefault(record.epoch, set()).add(record.index)
        found = []
        for epoch in sorted(numbers, reverse=True)[:limit]:
            order = self._order(epoch)
            with private_generators():
                number = order.find(index, batched=self._auto_collation)
            if number is not None and number in numbers[epoch]:
                found.append(ReplayedBatch(self._replay_setup(), epoch, number, order).delivery(index))
        return found

    def _order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch.

        Raises:
            ReplayError: The order is not known.
        """
        if self._is_iterable:
            raise ReplayError(
                f"a batch of the dataset ({type(self.dataset).__name__}) cannot be reproduced alone, because it "
                "depends on all that the dataset's iterator has yielded before. Give the dataset `__getitem__` and "
                "`__len__`, or iterate again from a state_dict()."
            )
        return self._parts.history.order(epoch)

    def _replay_setup(self) -> ReplaySetup:
        config, num_workers = self._config, self.num_workers
        return ReplaySetup(
            dataset=self.dataset,
            collate_fn=self._worker_collate_fn(),
            worker_init_fn=self.worker_init_fn if num_workers else None,
            on_error=config.on_error,
            spec=self._engine_config().spec,
            num_workers=num_workers,
            process=num_workers > 0 and not config.kind.in_process,
            chunk_spec=self._chunk_spec(),
            names=self._config.names,
            concurrency=config.concurrency if is_async(self.dataset) else 0,
        )

    # ---- observation ------------------------------------------------------------------------------------------------

    def stats(self) -> Snapshot:
        """Return a frozen snapshot of the loader. `print` it, or leave it as the last line of a cell."""
        return self._parts.monitor.stats(self._model_arguments(), self.dataset, iterated=self._parts.iterations > 0)

    def points(self) -> list[Point]:
        """Return the history that the dashboard plots: one point per call of `stats()`, at least 0.2 s apart."""
        return self._parts.monitor.points()

    def what_if(
        self,
        *,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        in_order: bool | None = None,
        workers: Workers | None = None,
        batch_size: int | None = None,
        cache: float | None = None,
        line: HotLine | str | int | None = None,
        transport: Literal["none"] | None = None,
    ) -> Prediction:
        """Predict the rate with other settings, from the newest epoch. `print` the result.

        The epoch's last 400 batches are replayed through a model of the loader: workers, prefetch window, order, and
        shared cores. An ended epoch of 4 to about 20 batches is replayed as a whole. There is no prediction if a replay
        with the current settings differs from the measurement by more than 20%, or if the model does not cover the
        cause (a lock, other programs, pickling), or if the result depends on something that was not measured. Nothing
        is started or changed. Several arguments count as one change.

        Args:
            num_workers: Number of workers; 0 for none.
            prefetch_factor: Batches requested ahead, per worker; at least 1.
            in_order: Whether batches are delivered in order.
            workers: "thread" instead of "process". The ends of the interval assume that all of the workers' computing
                holds the interpreter lock, and that none of it does.
            batch_size: Samples per batch; the speedup is of samples per second. The ends of the interval assume that
                a step takes longer in proportion to the batch, and that it takes as long as now.
            cache: Share of the samples that come from a cache of what `dataset[i]` returns, 0 to 1.
            line: A line of `hot_lines()` that is assumed to take no time, including all that it calls: the line, its
                place ("cell 4 line 12"), or its number.
            transport: "none" to assume that batches need not be transferred from the workers to the loop.

        Returns:
            The speedup with an interval; None with a reason if there is no prediction.

        Raises:
            ValueError: No setting is given, one is out of range, or no sampled line has this place.
        """
        asked = {
            "num_workers": num_workers, "prefetch_factor": prefetch_factor, "in_order": in_order, "workers": workers,
            "batch_size": batch_size, "cache": cache, "line": line, "transport": transport,
        }  # fmt: skip
        changed = {name: value for name, value in asked.items() if value is not None}
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError(
                f"what_if() needs a prefetch_factor of at least 1, not {prefetch_factor}, because it cannot predict "
                "the rate of a loader that requests nothing ahead"
            )
        if not changed or (num_workers or 0) < 0:
            raise ValueError(
                f"what_if() needs one or more settings that are not negative, such as num_workers=4, not {changed}"
            )
        cfg.check_predicted(workers=workers, batch_size=batch_size, cache=cache, transport=transport)
        return self._parts.monitor.what_if(changed, self._model_arguments(), iterated=self._parts.iterations > 0)

    def _model_arguments(self) -> dict[str, Any]:
        """Return the current values of the arguments that the model of the loader uses."""
        return {
            "num_workers": self.num_workers, "prefetch_factor": self.prefetch_factor, "in_order": self.in_order,
            "workers": self._config.workers, "batch_size": self.batch_size, "iterable": self._is_iterable,
            "prefetch": self.prefetch,
        }  # fmt: skip

    def profile_lines(self, on: bool | None = True) -> None:
        """Switch continuous sampling of the workers' lines of code on or off. `hot_lines()` shows the lines.

        If this method is not called, workers are sampled while a loop waits for them, from 0.1 s after the beginning
        of an epoch on.

        Sampling can be switched at any time, from any thread, even while a loop runs. Each worker is sampled at most 20
        times a second, which takes about 0.03% of its time. Nothing is sampled while no epoch runs.

        The code of a loop on the main thread is sampled, too. If the loop is the bottleneck, the verdict and
        `hot_lines()` name its slowest line.

        To sample a worker process, a signal is sent to it. It interrupts C functions that sleep and do not resume by
        themselves (the C library's `sleep`, not Python's).

        Args:
            on: True discards earlier samples and samples from now on; False stops sampling and keeps the samples; None
                samples only while a loop waits, as if this method had not been called.
        """
        self._parts.monitor.lines.switch(on=on)

    def hot_lines(self) -> HotLines:
        """Return the lines of your code on which workers have spent their time. `print` the result.

        The time of a line includes that of the libraries that it calls. Lines of notebook cells are shown, too. The
        time of each line is split into computing and waiting (for a disk, a network, a lock, a sleep).

        The samples are those of the newest epoch in which workers were sampled. If it has fewer than 20, those of the
        epochs before it count, too, as far as `reload()` or `profile_lines()`, which discard earlier samples. For an
        asynchronous dataset, only collation is sampled.

        Returns:
            Lines with their shares, the largest first. Up to one eighth of the samples of an epoch, or those of its
            last second, may still be missing.
        """
        return self._parts.monitor.hot_lines(iterated=self._parts.iterations > 0)

    def remedies(self, samples: int = 30, *, report: Callable[[str, int, int], object] | None = None) -> Remedies:
        """Find out what to write instead of the slowest lines, and try it on samples. `print` the result. Thread-safe.

        If something faster is known for one of the slowest lines of `hot_lines()`, a separate worker process rewrites
        the function and tries it. The current and the rewritten code produce the same samples with the same seeds, and
        the results are compared. Nothing changes in this process, and a running epoch is not affected, except that the
        trial takes a core.

        Args:
            samples: Number of samples on which to try; 0 to list what is known without trying it. There are more if
                batches would not be whole, or if samples are fast: up to ten times as many. A trial that has taken 10 s
                ends with fewer samples. No trial begins after 60 s.
            report: Called before each trial, with its name, its number from 0, and the number of trials. Without it, a
                progress bar is shown, if tqdm is installed.

        Returns:
            For each remedy: the line, why it is slow, the code to paste, the time per sample before and after, how much
            the samples differ, and the predicted rate of the loop. A remedy that gains nothing here is left out.

        Raises:
            ValueError: `samples` is negative.
        """
        if samples < 0:
            raise ValueError(f"samples must be at least 0, not {samples}")
        from nbloader.loader.remedy_search import (
            SEARCH_SECONDS,
            AsWorker,
            Samples,
            Scout,
            as_it_is,
            draws_all,
            no_bar,
            search,
        )
        from nbloader.report.progress import trial_bar

        prepare = AsWorker(self.dataset, self.worker_init_fn if self.num_workers else None)

        def run(trial: Any) -> Any:  # a generator of its own, so that nothing is drawn from the global one
            with DataLoader(
                trial, batch_size=None, num_workers=1, collate_fn=as_it_is,
                timeout=getattr(trial, "limit", SEARCH_SECONDS),
                generator=torch.Generator(), worker_init_fn=prepare,
            ) as loader:  # fmt: skip
                yield from loader

        def predict(saved: LineTime, change: str, *, unlocks: bool) -> Prediction:
            return self._parts.monitor.what_if_cheaper(
                saved, change, self._model_arguments(), iterated=self._parts.iterations > 0, unlocks=unlocks
            )

        collate_fn = self.collate_fn if self._auto_collation else None
        tried = Samples(self.dataset, collate_fn, (), self._is_iterable, self.batch_size or 1)
        tried = tried._replace(
            workers=0 if placement.accelerator_type() else max(1, self.num_workers),
            collating=self._parts.monitor.collating,
            all_drawn=self.worker_init_fn is None and draws_all(self._index_sampler, self.dataset),
        )
        hot = self.hot_lines()
        if samples and hot.lines:
            ((indices, facts),) = run(Scout(tried, self._index_sampler, samples))
            tried = tried._replace(indices=indices, facts=facts)
        bar = trial_bar if samples and report is None else no_bar
        more_workers = self.stats().epoch_verdict.more_workers is True
        new = self.num_workers > 0 and not (self.persistent_workers or self._config.kind.in_process)
        found = search(hot, tried, run, predict, report, bar, more_workers=more_workers, new_workers=new)
        if samples:
            self._parts.monitor.lines.tried(hot, found)
        return found

    def tune(
        self,
        seconds: float = 60.0,
        *,
        max_workers: int | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        kinds: Sequence[InterchangeableKind] | None = None,
    ) -> Tuning:
        """Search for faster settings of the workers and the prefetch factor while a loop runs. Thread-safe.

        Returns at once. Call it before the loop, or while it runs: the search begins with the first batches and changes
        the settings of this loader in the middle of an epoch. Each setting is measured for a few seconds, and those
        that may be the fastest are measured again in turns. The fastest setting is kept if it is faster than the
        current one by more than 3%. The batches stay the same, byte for byte: the number of workers is not changed for
        an iterable dataset, or if workers draw from random generators of their own. No worker is killed: one that is
        removed ends after its current sample, however long that takes, and so releases the locks that it holds.

        If all cores are in use at the end, no setting helps. The result then says so first, and lists what may make the
        samples cheaper, as `remedies(samples=0)` does.

        Args:
            seconds: Time for the search, counted while the loop runs.
            max_workers: Largest number of workers to try; by default 4 per core of the machines that workers run on
                (of this one, before the first batch), at least 8.
            num_workers: Instead of searching, switch to this number of workers at once, measure it, and keep it.
            prefetch_factor: Switch to this prefetch factor, likewise.
            kinds: The kinds of workers that may be tried: `("process", "thread")`. By default the current kind, because
                only you know whether your code may run in several threads at a time, or in processes that share no
                objects with this one. For iterable and asynchronous datasets, `chunk_size`, and with
                `multiprocessing_context`, the kind is not changed.

        Returns:
            The search. `print` it to see what was tried and what to write down; `undo()` restores the settings before
            it, and `stop()` ends it. A new search ends one that is still running.

        Raises:
            ValueError: The loader has no workers, or an argument is out of range.
            LoaderClosedError: After `close()`.
        """
        from nbloader.diagnose.tune import Search, Setting
        from nbloader.loader.tuning import Commands, Tuning, change_plan

        parts = self._parts
        parts.control.check_open()
        chosen = num_workers is not None or prefetch_factor is not None
        if num_workers is not None:
            num_workers = parts.control.check_num_workers(num_workers)
        prefetch_factor = parts.control.check_prefetch_factor(prefetch_factor)
        if not self.num_workers and not chosen:
            raise ValueError(
                "tune() changes the number of workers during an epoch, and a loader with num_workers=0 has none: "
                "assign loader.num_workers = 1 before the epoch"
            )
        if kinds is not None:
            cfg.check_kinds(kinds)
        if not seconds > 0 or (max_workers is not None and max_workers < 1):
            raise ValueError(f"tune() needs positive numbers, not seconds={seconds!r}, max_workers={max_workers!r}")
        if self.tuning is not None:
            self.tuning.stop()
            self.tuning.wait()
        note = ""
        factor, total = self._given("prefetch_factor"), self.prefetch
        start = Setting(self.num_workers, None if total is not None else factor)
        if chosen:
            workers = start.num_workers if num_workers is None else num_workers
            wanted = Setting(workers, start.prefetch_factor if prefetch_factor is None else prefetch_factor)
            plan = change_plan(start, wanted, parts.bus.batches())
        else:
            loader_ref = weakref.ref(self)  # the search does not keep the loader alive

            def predict(workers: int) -> float | None:
                loader = loader_ref()
                return None if loader is None else loader.what_if(num_workers=workers).speedup

            other, note = self._other_kind(kinds)
            if other:
                start = start._replace(kind=self._config.workers)
            most = parts.monitor.most_workers if max_workers is None else max_workers
            max_workers = self.num_workers if self._is_iterable else most
            plan = Search(start, max_workers, other_kind=other, predict=predict)

        def restore_window(loader: DataLoader[Any]) -> None:
            loader._set_window(factor, total)

        commands = Commands(
            resize=lambda loader, workers: loader._resize(workers, patient=True),
            restore_window=restore_window,
            use_kind=DataLoader._use_kind,
            remedies=lambda loader: loader.remedies(samples=0),
        )
        parts.monitor.tuning = tuning = Tuning(
            cast("LoaderControl", self), parts.monitor, seconds, plan, commands, note
        )  # fmt: skip
        return tuning

    def _other_kind(self, kinds: Sequence[str] | None) -> tuple[str, str]:
        """Return the kind of workers that `tune` may try besides the current one ("" if none), and why it may not."""
        config = self._config
        present, known = config.workers, get_args(InterchangeableKind)
        if self._is_iterable or config.chunk is not None or self._parts.engine_config.concurrency:
            return "", ""  # shards, pieces of batches and event loops are tied to their workers
        if present not in known:
            return "", ""  # the workers may be on other machines
        if config.multiprocessing_context is not None:
            return "", ""  # it is for processes
        other = next(kind for kind in known if kind != present)
        if kinds is not None:
            return (other if other in kinds else ""), ""
        threads = kind_class(other).in_process
        by = "several threads at a time" if threads else "processes that share no object with this one"
        return "", (
            f'workers="{other}" was not tried: only you know whether {type(self.dataset).__name__}, and the functions '
            f'of the loader, may be used by {by}. If so, tune(kinds=("process", "thread")) tries it.'
        )

    def _use_kind(self, kind: Workers) -> None:
        """Switch to another kind of workers, even in the middle of an epoch.

        Raises:
            DatasetTransferError: The dataset or a function cannot be sent to such workers.
        """
        if kind == self._config.workers:
            return
        parts = self._parts
        if isinstance(parts.engine, Engine):
            collate = self._worker_collate_fn()
            parts.engine.use_kind(kind, self.dataset, collate, self.worker_init_fn, self._config.on_error)
        with parts.starting:  # an epoch that starts compares them
            if isinstance(parts.engine, Engine):
                spec = dataclasses.replace(parts.engine_config.spec, kind=kind)
                parts.engine_config = dataclasses.replace(parts.engine_config, spec=spec)
            vars(self).update(_config=self._config.with_workers(kind), workers=kind)

    @property
    def tuning(self) -> Tuning | None:
        """The newest search of `tune()`; None if there is none."""
        return cast("Tuning | None", self._parts.monitor.tuning)

    @ReplaceableProperty
    def events(self) -> ev.EventBus:
        """The event bus, with `loader.events.subscribe(...)`, `loader.events.batches()`."""
        return self._parts.bus

    @ReplaceableProperty
    def trace(self) -> Trace:
        """The batches of the last 10,000 events. `loader.trace.save("epoch.json")` writes them for Perfetto."""
        return self._parts.monitor.trace

    def timeline(self, epoch: int | None = None) -> Figure:
        """A Bokeh figure of what each worker and the loop did over time; for `bokeh.plotting.show`.

        Args:
            epoch: Its number; the newest by default.
        """
        return self._parts.monitor.timeline(epoch)

    def report(self, epoch: int | None = None) -> Report:
        """The figures of an epoch on an HTML page that needs no kernel: `loader.report().save("report.html")`.

        Args:
            epoch: Its number; the newest by default.
        """
        arguments, iterated = self._model_arguments(), self._parts.iterations > 0
        return self._parts.monitor.report(arguments, self.dataset, epoch, iterated=iterated)

    def record(self, path: str | os.PathLike[str], *, limit: int = 1_000_000) -> Recorder:
        """Record epochs, faults, restarts, and what a dashboard shows to a file, for `nbloader.play`.

        ::

            with loader.record("run.nbl"):
                for batch in loader:
                    ...

        The recording ends when the returned recorder or the loader is closed, or at the end of the `with` block. It
        takes about 2 kB a second and 200 bytes a batch. It contains indices of samples, texts of errors, and sampled
        lines of code, but no samples.

        Args:
            path: The file to write, which is replaced.
            limit: Maximum size of the file in bytes. When it is reached, the recording ends.

        Raises:
            OSError: The file cannot be written.
            ValueError: The limit is less than 20,000 bytes or more than 16 MiB.
            LoaderClosedError: The loader was closed.
        """
        from nbloader.recording.recorder import Recorder

        self._parts.control.check_open()
        return Recorder(cast("LoaderControl", self), path, limit)

    def dashboard(self) -> Dashboard | None:
        """Show the live dashboard in this cell's output. A loader as the last line of a cell does the same.

        Returns:
            The dashboard. In a script or a terminal None, and a line is printed that says what to use there.
        """
        from nbloader.dashboard import show

        return show(cast("LoaderControl", self))

    def explore(self, **options: Any) -> Explorer | None:
        """Look at the samples of the dataset, even while this loader runs. See `nbloader.explore`.

        The explorer has its own workers, which read the samples. The loader's workers and random numbers are not
        affected.

        Args:
            **options: Arguments of `nbloader.explore`, such as `num_workers=4`.

        Returns:
            The explorer. In a script or a terminal None, and a line is printed that says what to use there.
        """
        from nbloader.explorer import explore

        return explore(self, **options)

    def progress(self, **options: Any) -> Iterator[Any]:
        """Iterate with a progress bar in the terminal: `for batch in loader.progress():`.

        In addition to tqdm's own figures it shows the share of time that the loop waits, and at the end what limited
        the loop.

        Args:
            **options: Options of `tqdm.tqdm`, such as `desc`, `leave` or `file`.

        Raises:
            ModuleNotFoundError: tqdm is not installed.
        """
        from nbloader.report.progress import progress

        return progress(self, options)

    def _ipython_display_(self) -> None:
        self.dashboard()

    def _display_(self) -> Dashboard | None:
        """Return what marimo shows for the last line of a cell."""
        return self.dashboard()

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return the loader's position: which batches of which epoch were delivered, and how to draw the rest.

        The batch that the loop is processing counts as delivered. This method can be called at any time. The state is
        JSON-serializable and a few kB, regardless of the size of the dataset. The method names are those of torchdata's
        StatefulDataLoader.

        From the first call on, what would be drawn from torch's global generator (the order with `shuffle=True` and no
        `generator=`, and the seeds) is derived from the loader's own seed, here and in the process that resumes:
        both then yield the same later epochs, which `torch.manual_seed` no longer changes.

        Raises:
            TypeError: The state of a custom sampler cannot be stored as JSON, or the loader is over a source.
        """
        prefetched = self._parts.prefetched
        return self._parts.checkpoint.state_dict(self._epoch_context(), None if prefetched is None else prefetched.plan)

    def load_state_dict(self, state_dict: State) -> None:
        """Restore a position: the next `iter(loader)` resumes where `state_dict()` was called, in any process.

        The rest of that epoch and all later ones are identical byte for byte, regardless of the number of workers. With
        an iterable dataset, the rest of the epoch keeps its number of shards. Later epochs are sharded by the number of
        workers of this loader.

        The whole state is checked before anything is changed. The state of a custom sampler is first loaded into a copy
        of the sampler, from which one index is drawn; the states of an iterable dataset are first loaded into pickled
        copies of it.

        Args:
            state_dict: What `state_dict()` returned, possibly via JSON.

        Raises:
            ValueError: The state belongs to another dataset or other arguments, or cannot be read. The message names
                the field, and the loader is unchanged.
            TypeError: It is not a dict.
        """
        self._parts.checkpoint.load(state_dict, self._epoch_context())
        self.clean()

    # ---- the object -------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless the loader was built from it.

        Raises:
            ValueError: Setting it would have no effect; torch's DataLoader raises this for most of these attributes.
        """
        locked = self.__initialized if name in cfg.FIXED_IN_TORCH else name in cfg.FIXED and "_parts" in vars(self)
        if locked:
            instead = "use loader.reload(dataset)" if name == "dataset" else "create a new loader"
            cls = type(self).__name__
            raise ValueError(f"{name} attribute should not be set after {cls} is initialized: {instead}")
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle the attributes: the new loader has its own workers and starts before its first epoch.

        The object is created before its attributes, since its collate function may be one of its own methods. Python
        itself restores them: `__setstate__` would be found by wrappers such as Accelerate's, which delegate missing
        attributes to the loader inside.
        """
        return (
            blank,
            (type(self),),
            {name: value for name, value in vars(self).items() if name not in {"_parts", "_iterator"}},
        )

    def __repr__(self) -> str:
        """One line."""
        return f"<nbloader.DataLoader of {type(self.dataset).__name__}, num_workers={self.num_workers}>"

    def close(self) -> None:
        """Stop the workers now. The loader cannot be used afterwards. Closing it twice is a no-op.

        It may be called from any thread, an event subscriber, a callback or a signal handler. A loop that iterates the
        loader ends with `LoaderClosedError`, unless it has received all of its batches.
        """
        self.clean()
        if self._parts.engine.close():
            if isinstance(self.batch_sampler, SourceSampler):
                self.batch_sampler.close()
            if self._parts.transfer is not None:
                self._parts.transfer.close()
            self._parts.bus.publish(ev.LoaderClosed(_clock()))
        self._parts.finalizer.detach()

    def __enter__(self) -> DataLoader[T_co]:
        """Return the loader itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close it."""
        self.close()


cfg.document(DataLoader)


def blank(cls: type[DataLoader[Any]]) -> DataLoader[Any]:
    """Create a loader without attributes, which a copy or an unpickler adds.

    Args:
        cls: The loader's class.
    """
    return object.__new__(cls)


@dataclass(slots=True, kw_only=True)
class _Parts:
    """State that belongs to one loader and is neither copied nor pickled."""

    bus: ev.EventBus
    transfer: DeviceTransfer | None
    """Moves batches to their device; None if they are not moved."""
    pins: bool
    """The value of `pin_memory` for which `transfer` was made."""
    engine_config: EngineConfig
    """The current configuration of the engine."""
    engine: AnyEngine
    finalizer: weakref.finalize[Any, Any]
    """Closes the engine when the loader is garbage-collected."""
    control: Control
    checkpoint: Checkpoint
    monitor: Monitor
    history: EpochHistory
    prefetched: EpochIterator[Any] | None = None
    """The next epoch, if it was started early: by `refresh()` or `auto_reload`."""
    prefetched_with: SentAttributes | None = None
    """The attributes of the dataset when that epoch was started."""
    sent: SentAttributes | None = None
    """The attributes of the dataset that persistent workers have copies of; None if there are no such workers."""
    iterations: int = 0
    """Epochs that were started."""
    warned_of: int = 0
    """The number of worker processes for which a warning was last considered; 0 before."""
    starting: threading.RLock = field(default_factory=threading.RLock)
    """Held while an epoch starts: threads that iterate over one loader must not create two engines for one epoch."""
