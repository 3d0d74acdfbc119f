"""Random generators and `get_worker_info()` per worker thread. All monkey patches of other modules are in this file.

Seeds depend on the batch, so that a batch is the same whichever worker produces it. But the global generators of
`random`, NumPy and torch belong to the whole process. A worker thread therefore needs its own generators, and datasets
must draw from these even if they call `random.random()`. To achieve this, nbloader replaces the objects listed here
when the first worker thread starts. It restores them when the last worker thread has ended (a thread that hangs in the
dataset ends when that call returns). Threads that are not workers keep using the global generators throughout.

| replaced                                                    | so that worker threads                                |
|-------------------------------------------------------------|-------------------------------------------------------|
| `random.random`, `getrandbits`, `seed`, `gauss`, `getstate`,| draw from their own generator                         |
| `setstate`                                                  |                                                       |
| attributes `random` and `getrandbits` of the instance       | do so in all other functions of `random`, even if     |
| behind the functions of `random`                            | they were imported before (`from random import choice`)|
| functions of `numpy.random` that use its global generator   | draw from their own generator                         |
| `manual_seed`, `seed`, `initial_seed`, `get_rng_state` and  | seed and read their own generator                     |
| `set_rng_state` in `torch` and `torch.random`               |                                                       |
| code of `torch.utils.data.get_worker_info`                  | find their own worker info. Its code is replaced,     |
|                                                             | since datasets import it by name: if they received    |
|                                                             | None, each worker would yield all samples             |
| entry for tensors in torch's `default_collate_fn_map`       | do not stack tensors in torch's shared memory         |

A worker process of an asynchronous dataset replaces the same objects, so that each sample draws from its own
generators (`TaskContext`).

torch's random functions need no patch: a thread-local `TorchFunctionMode` passes the generator to them. It adds 1 to
5 us to each call of a torch function.

`NBLOADER_THREAD_PATCHES=0` in the environment turns the patches off. In worker threads, datasets then draw from the
global generators of `random` and `numpy.random`, which are not seeded for each batch and are used in varying order.
`torch.utils.data.get_worker_info()` returns None; `nbloader.get_worker_info()` still works.

Not covered, with or without the patches: `random.random`, `random.gauss`, `random.seed` and functions of
`numpy.random` that were imported by name; torch functions that take no generator, such as dropout; threads that a
dataset starts itself.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import random
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbloader._util import rng
from nbloader._util.import_hooks import when_imported
from nbloader.workers.worker_info import WorkerInfo, thread_local

if TYPE_CHECKING:
    import asyncio  # other workers start without it

SWITCH = "NBLOADER_THREAD_PATCHES"
"""Environment variable; "0" turns the patches off."""


def enabled() -> bool:
    """Whether the patches are turned on, so that threads can have their own generators."""
    return os.environ.get(SWITCH) != "0"


class ThreadContext:
    """Context manager that gives the current worker thread its own random generators. It is a `WorkerContext`.

    Args:
        info: What `get_worker_info()` returns on this thread; None if the thread is not a worker.
    """

    def __init__(self, info: WorkerInfo | None) -> None:
        self._info = info
        self._generators = rng.ThreadGenerators()
        self._mode = _torch_mode() if "torch" in sys.modules else _NO_CONTEXT

    def __enter__(self) -> ThreadContext:
        """Start using the thread's own generators."""
        rng.thread_local.generators = self._generators
        self.set_worker_info(self._info)
        _patches.acquire()
        self._mode.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """Go back to the global generators."""
        self._mode.__exit__(*exc)
        rng.thread_local.generators = None
        self.set_worker_info(None)
        _patches.release()

    def seed(self, seed: int) -> None:
        """See `WorkerContext`."""
        rng.seed_everything(seed)

    def was_seeded(self) -> bool:
        """See `WorkerContext`."""
        return rng.was_seeded()

    def set_worker_info(self, info: WorkerInfo | None) -> None:
        """See `WorkerContext`."""
        if info is not thread_local.worker_info:
            thread_local.worker_info = info
            thread_local.torch_worker_info = None if info is None else _torch_info(info)


class TaskContext:
    """Context manager in which each asyncio task of this thread can draw from its own random generators.

    A worker runs its event loop inside it. In a worker thread, the `ThreadContext` has already applied the patches; in
    a worker process, they are applied here.

    Args:
        threaded: Whether this is a worker thread.
    """

    def __init__(self, *, threaded: bool) -> None:
        self._threaded = threaded
        self._generators = rng.TaskGenerators()
        self._before: rng.Generators | None = None
        self._mode: Any = None
        self._thread = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_torch = False

    def __enter__(self) -> TaskContext:
        """Enter the context. Tasks keep drawing from the same generators until `draw_by_task` is called."""
        self._thread = threading.get_ident()
        self._before = rng.thread_local.generators
        if not self._threaded:
            _patches.acquire()
            when_imported("torch", self._use_torch)
        return self

    def __exit__(self, *exc: object) -> None:
        """Go back to the generators of the thread, or to the global ones."""
        self.draw_together()
        if not self._threaded:
            if self._mode is not None:
                self._mode.__exit__(*exc)
            _patches.release()

    def draw_by_task(self) -> None:
        """Let each task draw from its own generators (`rng.seed_task`)."""
        rng.thread_local.generators = self._generators

    def draw_together(self) -> None:
        """Let all tasks draw from the generators of the worker."""
        rng.thread_local.generators = self._before

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop, which runs on the thread that has entered this context."""
        self._loop = loop
        if self._has_torch:
            self._enter_mode()

    def _use_torch(self) -> None:
        """Apply torch's patches and mode after torch was imported.

        This may run on any thread, since a sample may import torch in `asyncio.to_thread`.
        """
        _patches.add_torch()
        self._has_torch = True
        if threading.get_ident() == self._thread:
            self._enter_mode()
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._enter_mode)  # runs before the sample continues

    def _enter_mode(self) -> None:
        if self._mode is None:  # modes are thread-local
            mode = _torch_mode()
            mode.__enter__()
            self._mode = mode


def _torch_info(info: WorkerInfo) -> Any:
    """Convert to torch's `WorkerInfo`; newer versions also state the kind of worker. None if torch is not imported."""
    if "torch" not in sys.modules:
        return None
    from torch.utils.data._utils import worker as torch_worker

    torch_class: Any = torch_worker.WorkerInfo
    kind = {"worker_method": "thread"} if hasattr(torch_class, "worker_method") else {}
    return torch_class(**vars(info), **kind)


_NO_CONTEXT = nullcontext()


def without_mode() -> AbstractContextManager[Any]:
    """Return a context manager in which torch ignores the mode, for code that draws no random numbers."""
    torch = sys.modules.get("torch")
    if torch is None or rng.thread_local.generators is None:
        return _NO_CONTEXT
    return torch._C.DisableTorchFunction()  # type: ignore[no-any-return]


# ---- patches ------------------------------------------------------------------------------------------------------

_MISSING = object()


class RoutedFunction:
    """A replacement for a module's function: it calls the current thread's generator if it has one, else the original.

    Args:
        original: The original function.
        module: The module of the function.
        name: The name of the function in that module.
        method: The method of `ThreadGenerators` to call instead, as a dotted path for `operator.attrgetter`.
    """

    def __init__(self, original: Callable[..., Any], module: str, name: str, method: str) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._module = module
        self._name = name
        self._method = operator.attrgetter(method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method of the thread's generators, or the original function."""
        own = rng.thread_local.generators
        return self._original(*args, **kwargs) if own is None else self._method(own)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a reference to the module's function."""
        return _function, (self._module, self._name)


def _function(module: str, name: str) -> Any:
    return getattr(sys.modules[module], name)


def _thread_aware_get_worker_info() -> Any:
    """Return the worker info of the current thread.

    The code of this function replaces the code of torch's function, so it runs with the globals of torch's module.
    """
    from nbloader.workers.thread_rng import torch_worker_info

    return torch_worker_info(globals()["_worker_info"])


def torch_worker_info(of_process: Any) -> Any:
    """Return the result of `torch.utils.data.get_worker_info()` for this thread.

    Args:
        of_process: The result that the original function would return.
    """
    if thread_local.torch_worker_info is None or thread_local.stacking:
        return of_process
    return thread_local.torch_worker_info


@dataclass(frozen=True, slots=True)
class Patch:
    """One replaced attribute, or one replaced item of a dict."""

    owner: Any
    name: Any
    replacement: Any
    original: Any

    @classmethod
    def apply(cls, owner: Any, name: Any, replacement: Any) -> Patch:
        """Replace an attribute of an object, or an item of a dict."""
        if isinstance(owner, dict):
            patch = cls(owner, name, replacement, owner.get(name, _MISSING))
            owner[name] = replacement
        else:
            hidden = _MISSING if owner is _python_generator() else getattr(owner, name)
            patch = cls(owner, name, replacement, hidden)
            setattr(owner, name, replacement)
        return patch

    def undo(self) -> None:
        """Restore the original, unless other code has replaced the attribute or item in the meantime."""
        if isinstance(self.owner, dict):
            if self.owner.get(self.name) is self.replacement:
                self.owner[self.name] = self.original
        elif getattr(self.owner, self.name) is not self.replacement:
            pass
        elif self.original is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


def _python_generator() -> Any:
    """The instance of `random.Random` whose bound methods are the functions of the module `random`."""
    return getattr(random, "_inst")  # noqa: B009 - private


class _Patches:
    """All patches, with a reference count: they are applied while they have at least one user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._applied: list[Patch] = []
        self._has_torch = False

    def acquire(self) -> None:
        """Add a user of the patches; the first user applies them."""
        with self._lock:
            self._users += 1
            if self._users == 1 and enabled():
                self._patch_random()
                self._patch_numpy()
                if "torch" in sys.modules:
                    self._patch_torch()

    def add_torch(self) -> None:
        """Patch torch, if it was imported after the other patches were applied."""
        with self._lock:
            if self._applied and not self._has_torch:
                self._patch_torch()

    def release(self) -> None:
        """Remove a user of the patches; the last user undoes them."""
        with self._lock:
            self._users -= 1
            if not self._users:
                while self._applied:
                    self._applied.pop().undo()
                self._has_torch = False

    def _apply(self, owner: Any, name: Any, replacement: Any) -> None:
        self._applied.append(Patch.apply(owner, name, replacement))

    def _route(self, module: Any, name: str, method: str) -> None:
        self._apply(module, name, RoutedFunction(getattr(module, name), module.__name__, name, method))

    def _patch_random(self) -> None:
        for name in ("random", "getrandbits"):  # all other methods of the instance call these
            replacement = RoutedFunction(getattr(random, name), "random", name, f"random.{name}")
            self._apply(_python_generator(), name, replacement)
            self._apply(random, name, replacement)
        for name in ("seed", "gauss", "getstate", "setstate"):
            self._route(random, name, f"random.{name}")

    def _patch_numpy(self) -> None:
        generator = np.random.mtrand._rand
        for name in dir(np.random):
            if not name.startswith("_") and getattr(getattr(np.random, name), "__self__", None) is generator:
                self._route(np.random, name, f"numpy.{name}")
        for name, method in (("seed", "seed"), ("ranf", "random_sample"), ("sample", "random_sample")):
            if not isinstance(getattr(np.random, name), RoutedFunction):  # not a method in every version of NumPy
                self._route(np.random, name, f"numpy.{method}")

    def _patch_torch(self) -> None:
        self._has_torch = True
        import torch
        from torch.utils.data._utils import collate
        from torch.utils.data._utils import worker as torch_worker

        for module in (torch.random, torch):
            for name, method in (
                ("manual_seed", "torch_manual_seed"),
                ("seed", "torch.seed"),
                ("initial_seed", "torch.initial_seed"),
                ("get_rng_state", "torch.get_state"),
                ("set_rng_state", "torch_set_rng_state"),
            ):
                self._route(module, name, method)
        self._apply(torch_worker.get_worker_info, "__code__", _thread_aware_get_worker_info.__code__)
        stack = collate.default_collate_fn_map.get(torch.Tensor)
        if stack is not None:
            self._apply(collate.default_collate_fn_map, torch.Tensor, _stack_in_private_memory(stack))


def _stack_in_private_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's function that stacks tensors, so that it uses private memory even in a worker."""

    @functools.wraps(original)
    def stack(*args: Any, **kwargs: Any) -> Any:
        stacking, thread_local.stacking = thread_local.stacking, True
        try:
            return original(*args, **kwargs)
        finally:
            thread_local.stacking = stacking

    return stack


_patches = _Patches()


# ---- torch's random functions -------------------------------------------------------------------------------------


@functools.cache
def _torch_mode() -> Any:
    """Create the mode that passes the thread's generator to torch's random functions."""
    import torch
    from torch.overrides import TorchFunctionMode

    tensor = torch.Tensor
    drawing = {
        getattr(owner, name)
        for owner, names in (
            (torch, "rand randn randint randperm normal bernoulli multinomial poisson binomial"),
            (torch, "_standard_gamma _sample_dirichlet"),
            (tensor, "bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial normal_ random_"),
            (tensor, "uniform_"),
            (torch.nn.init, "uniform_ normal_ kaiming_uniform_"),  # these dispatch to the mode themselves
        )
        for name in names.split()
    }
    like = {torch.rand_like: "uniform_", torch.randn_like: "normal_", torch.randint_like: "random_"}

    class ThreadGeneratorMode(TorchFunctionMode):
        """Pass the generator of the thread to torch's random functions."""

        def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            own = rng.thread_local.generators
            if own is None or kwargs.get("generator") is not None:
                return func(*args, **kwargs)
            if func in drawing:
                kwargs = {**kwargs, "generator": own.torch}
            elif func in like:
                return _draw_like(own.torch, like[func], args, kwargs)
            return func(*args, **kwargs)

    def _draw_like(generator: Any, fill: str, args: Any, kwargs: Any) -> Any:
        """Do what `torch.rand_like` and similar functions do: in some versions of torch they take no generator."""
        kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
        bounds = args[1:]
        if fill == "random_":
            low, high = kwargs.pop("low", None), kwargs.pop("high", None)
            bounds = [b for b in (*bounds, low, high) if b is not None]
            bounds = [0, *bounds] if len(bounds) == 1 else bounds
        empty = torch.empty_like(args[0] if args else kwargs.pop("input"), **kwargs)
        return getattr(empty, fill)(*bounds, generator=generator)

    return ThreadGeneratorMode()
