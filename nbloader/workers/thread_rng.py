"""What belongs to a process, made private to each worker thread: random generators, torch's `get_worker_info()`.

`random`, NumPy's and torch's global generators belong to the whole process, and seeds belong to the batch: each worker
thread must draw from generators of its own, or a batch would depend on what the others do. So as long as there is a
worker thread

- the functions of the modules `random` and `numpy.random` look at which thread calls them: a worker thread gets its
  own generator, all other threads the generator they always had;
- `random.choice` and the like answer so too where they were bound before (`from random import choice`);
- torch's random functions are given a worker thread's own generator (a mode of torch that other threads do not see),
  and so are `torch.manual_seed`, `torch.initial_seed` and `torch.get_rng_state`;
- `torch.utils.data.get_worker_info()` answers in a worker thread as in a worker process.

When the last worker thread has ended all is as it was. What cannot be reached this way draws from the process's
generator, in an order that depends on the threads: `random.random`, `random.seed` and all of `numpy.random` where a
module holds them by name (`from random import random`); dropout and other functions of torch that take no generator;
and threads that a dataset starts by itself.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class WorkerInfo:
    """What `get_worker_info()` gives inside a worker, as torch's."""

    id: int
    """Worker id, from 0."""
    num_workers: int
    seed: int
    """Seed of this worker: the loader's base seed plus `id`, as in torch."""
    dataset: Any
    """This worker's copy of the dataset; the dataset itself in a worker thread."""


class Own(threading.local):
    """What the thread that looks has of its own; None in all but worker threads."""

    worker_info: WorkerInfo | None = None
    """For `get_worker_info()`."""
    torch_worker_info: Any = None
    """For torch's."""

    random: random.Random | None = None
    numpy: np.random.RandomState | None = None
    torch: Any = None


own = Own()


class Private:
    """In a `with`, on a worker's thread: what it draws comes from generators that no other thread draws from.

    Args:
        info: What `get_worker_info()` gives there.
    """

    def __init__(self, info: WorkerInfo) -> None:
        self._info = info
        self._random = random.Random()  # noqa: S311 - augmentation, not cryptography
        self._numpy = np.random.RandomState(0)
        self._torch: Any = None
        self._seed = 0

    def __enter__(self) -> Private:
        """From now on."""
        own.random, own.numpy, own.worker_info = self._random, self._numpy, self._info
        _routes.add()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Go back to the process's own."""
        own.random = own.numpy = own.torch = own.worker_info = own.torch_worker_info = None
        _routes.remove()

    def introduce(self, info: WorkerInfo | None) -> None:
        """Make `get_worker_info()` answer this on this thread from now on."""
        if info is not own.worker_info:
            own.worker_info = info
            if own.torch is not None:
                own.torch_worker_info = _for_torch(info) if info is not None else None

    def seed(self, seed: int) -> None:
        """Seed them as `rng.seed_everything` seeds those of a process: the same seed draws the same numbers."""
        self._seed = seed
        self._random.seed(seed)
        self._numpy.seed(seed & 0xFFFFFFFF)
        torch = sys.modules.get("torch")
        if torch is not None:
            if self._torch is None:
                self._torch = own.torch = torch.Generator()
                own.torch_worker_info = _for_torch(self._info)
                _routes.add_torch(torch)
            self._torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)

    def torch_was_seeded(self) -> bool:
        """Whether somebody else has seeded this thread's generator since."""
        return self._torch is not None and self._torch.initial_seed() != self._seed & 0x7FFFFFFFFFFFFFFF

    def torch_mode(self) -> AbstractContextManager[Any]:
        """In a `with`: torch's functions draw from this thread's generator. Costs 1 to 5 us a call of torch."""
        return _mode() if own.torch is not None else nullcontext()


def _for_torch(info: WorkerInfo) -> Any:
    """The same as torch has it; newer versions tell what kind of worker it is."""
    theirs = sys.modules["torch"].utils.data._utils.worker.WorkerInfo
    kind = {"worker_method": "thread"} if hasattr(theirs, "worker_method") else {}
    return theirs(**vars(info), **kind)


def without_mode() -> AbstractContextManager[Any]:
    """In a `with`: torch's functions are called as if no mode were there, for code that draws nothing."""
    return sys.modules["torch"]._C.DisableTorchFunction() if own.torch is not None else nullcontext()


# ---- random and numpy.random --------------------------------------------------------------------------------------


class Routed:
    """In the place of a function of a module: calls the thread's own generator, or else what it stands for."""

    def __init__(self, original: Callable[..., Any], kind: str, name: str) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._kind = kind
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        mine = getattr(own, self._kind)
        return self._original(*args, **kwargs) if mine is None else getattr(mine, self._name)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, what it stands for."""
        return _function, ("numpy.random" if self._kind == "numpy" else "random", self._name)


def _function(module: str, name: str) -> Any:
    return getattr(sys.modules[module], name)


class _RoutedRandom(random.Random):
    """The class of the generator behind the module `random`: for functions of it that were bound before."""

    __slots__ = ()

    def random(self) -> float:
        mine = own.random
        return super().random() if mine is None else mine.random()

    def getrandbits(self, k: int, /) -> int:
        mine = own.random
        return super().getrandbits(k) if mine is None else mine.getrandbits(k)

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        mine = own.random
        return super().gauss(mu, sigma) if mine is None else mine.gauss(mu, sigma)


def _get_worker_info() -> Any:
    """What torch's function of this name does meanwhile, with the globals of torch's module.

    torch's `default_collate` is told of no worker: it would stack tensors into shared memory, to spare another process
    a copy.
    """
    import sys

    from nbloader.workers.thread_rng import own

    if own.torch_worker_info is None or sys._getframe(1).f_code.co_name == "collate_tensor_fn":
        return globals()["_worker_info"]
    return own.torch_worker_info


class _RoutedTorch:
    """In the place of `torch.random.default_generator`: the thread's own, or else that of the process."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original if own.torch is None else own.torch, name)


class _Routes:
    """What is put in the place of what, for as long as there are threads with generators of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def add(self) -> None:
        """One more thread."""
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            hidden: Any = random._inst
            for module, kind, owner in ((random, "random", hidden), (np.random, "numpy", np.random.mtrand._rand)):
                for name in dir(module):
                    original = getattr(module, name)
                    if getattr(original, "__self__", None) is owner and not name.startswith("_"):
                        self._replace(module, name, Routed(original, kind, name))
            if not isinstance(np.random.seed, Routed):  # in some versions a function that asks for the generator
                self._replace(np.random, "seed", Routed(np.random.seed, "numpy", "seed"))
            self._replace(hidden, "__class__", _RoutedRandom)

    def add_torch(self, torch: Any) -> None:
        """A thread that draws from torch."""
        with self._lock:
            if not any(owner is torch.random for owner, *_ in self._replaced):
                self._replace(torch.random, "default_generator", _RoutedTorch(torch.random.default_generator))
                asked = torch.utils.data._utils.worker.get_worker_info  # many hold it by name: its code is exchanged
                self._replace(asked, "__code__", _get_worker_info.__code__)

    def remove(self) -> None:
        """One thread fewer; with the last everything is as it was, but for what others have replaced meanwhile."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            while self._replaced:
                owner, name, original, ours = self._replaced.pop()
                if getattr(owner, name) is ours:
                    setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        self._replaced.append((owner, name, getattr(owner, name), ours))
        setattr(owner, name, ours)


_routes = _Routes()


# ---- torch --------------------------------------------------------------------------------------------------------


@functools.cache
def _mode() -> Any:
    """The mode in which torch's random functions get the thread's own generator; made when torch is there."""
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
            (torch.nn.init, "uniform_ normal_ kaiming_uniform_"),  # those that ask modes themselves
        )
        for name in names.split()
    }
    like = {torch.rand_like: "uniform_", torch.randn_like: "normal_", torch.randint_like: "random_"}

    class OwnGenerator(TorchFunctionMode):
        """Gives torch's random functions a generator."""

        def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in drawing:
                if kwargs.get("generator") is None:
                    kwargs = {**kwargs, "generator": own.torch}
            elif func in like and kwargs.get("generator") is None:
                return _draw_like(like[func], args, kwargs)
            return func(*args, **kwargs)

    def _draw_like(fill: str, args: Any, kwargs: Any) -> Any:
        """What `torch.rand_like` and the like do, which take no generator in some versions of torch."""
        kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
        bounds = args[1:]
        if fill == "random_":
            low, high = kwargs.pop("low", None), kwargs.pop("high", None)
            bounds = [b for b in (*bounds, low, high) if b is not None]
            bounds = [0, *bounds] if len(bounds) == 1 else bounds
        empty = torch.empty_like(args[0] if args else kwargs.pop("input"), **kwargs)
        return getattr(empty, fill)(*bounds, generator=own.torch)

    return OwnGenerator()
