"""`cached`: mark a deterministic function, so that each result is computed once for all workers."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from nbloader._util import rng
from nbloader.cache import process_cache
from nbloader.cache.digest import SIZE, Digester, DigestError, FileVersion, FunctionDigest, Transparent
from nbloader.cache.sample_cache import MISSING, SampleCache

P = ParamSpec("P")
R = TypeVar("R")

SLOW_NS = 1_000_000
"""CPU time, ns. If comparing the objects that a function refers to takes longer than this, a warning names them."""
WATCHED = 3
"""Number of calls per process, not counting cache hits, that are checked for drawing random numbers."""
_MAIN = ("__main__", "__mp_main__")
_clock = time.perf_counter_ns


class CachedFunction(Transparent, Generic[P, R]):
    """A function whose results are cached. `nbloader.cached` creates it; `__wrapped__` is the function."""

    __qualname__: str

    def __init__(self, function: Callable[P, R]) -> None:
        self.__wrapped__: Callable[P, R] = function
        functools.update_wrapper(self, function)
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._digest: FunctionDigest | None = None
        self._watched = WATCHED
        process_cache.add_user(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return a copy of what the function would return, which the caller may modify.

        Raises:
            TypeError: See `cached`.
            Exception: Whatever the function raises.
        """
        cache = process_cache.current()
        digester = Digester(files=True)
        digest = self._current_digest(cache)
        key = self._key(digest, digester, args, kwargs)
        found: R = cache.get(key)
        if found is not MISSING:
            return found
        if digester.folders:
            cache.warn_once(
                (self._name, "folder"),
                f"the cached function {self._name} was called with the folder {digester.folders[0]!r}: it is not seen "
                "when a file in it changes. Pass the path of the file that it reads.",
            )
        states = rng.states() if self._watched else None
        begin = _clock()
        value = self.__wrapped__(*args, **kwargs)
        cost = _clock() - begin
        if states is not None:
            self._watched -= 1
            self._check_draws(cache, states)
        files = digester.files
        if digest.settled() and all(file.settled() and FileVersion.now(file.path) == file for file in files):
            cache.put(key, value, cost, self._name)
        return value

    def _key(self, digest: FunctionDigest, digester: Digester, args: Any, kwargs: Any) -> bytes:
        sha = hashlib.sha256(digest.value, usedforsecurity=False)
        try:
            for value in args:
                sha.update(digester.digest(value))
            for name, value in sorted(kwargs.items()):
                sha.update(b"%d %s" % (len(name), name.encode()) + digester.digest(value))
        except DigestError as error:
            raise TypeError(
                f"an argument of the cached function {self._name} cannot be compared with that of other calls: "
                f"{error}. Pass what it is made of, such as the path of a file, and open it in the function."
            ) from error
        sha.update(b"%d" % len(args))
        return sha.digest()[:SIZE]

    def _current_digest(self, cache: SampleCache) -> FunctionDigest:
        """Return the digest of the code. It is computed again if anything that the code refers to has changed."""
        digest = self._digest
        if digest is not None:
            begin = time.thread_time_ns() if digest.mutable else 0
            holds = digest.holds()
            if begin and (took := time.thread_time_ns() - begin) > SLOW_NS:
                cache.warn_once(
                    (self._name, "mutable"),
                    f"the cached function {self._name} refers to {', '.join(map(repr, digest.mutable))}, which could "
                    f"change and is compared at each call: {took / 1e6:,.1f} ms. Pass what it needs as an argument "
                    "(decode(files[i]), not decode(i)), or make a list a tuple and an array read-only.",
                )
            if holds:
                return digest
        try:
            self._digest = digest = FunctionDigest(self.__wrapped__)
        except DigestError as error:
            raise TypeError(
                f"{self._name} cannot be cached, since it is not known when its result changes: {error}. Pass it as an "
                "argument that can be compared, or open it in the function."
            ) from error
        return digest

    def _check_draws(self, cache: SampleCache, states: list[Any]) -> None:
        """Warn if the state of one of this thread's random number generators has changed."""
        now = rng.states()
        if any(before is not None and before != after for before, after in zip(states, now, strict=True)):
            cache.warn_once(
                (self._name, "draws"),
                f"the cached function {self._name} draws random numbers: with equal arguments it returns the same "
                "result in each epoch. Leave the random part outside.",
            )

    def __get__(self, instance: object, owner: type | None = None) -> CachedFunction[P, R]:
        """Reject use as a method.

        Raises:
            TypeError: The function was looked up on an instance.
        """
        if instance is None:
            return self
        raise TypeError(
            f"{self._name} cannot be cached as a method: with self, its result could depend on all of the dataset. "
            "Write @staticmethod above @nbloader.cached, and pass what it needs, such as self.decode(self.files[i])."
        )

    def __reduce__(self) -> Any:
        module = sys.modules.get(self.__module__)
        if self.__module__ not in _MAIN and module is not None:
            found: Any = module
            for name in self.__qualname__.split("."):
                found = getattr(found, name, None)
            if found is self:
                return self.__qualname__
        return CachedFunction, (self.__wrapped__,)

    def __repr__(self) -> str:
        return f"<cached {self.__wrapped__!r}>"


def cached(function: Callable[P, R]) -> CachedFunction[P, R]:
    """Cache the results of a deterministic function in memory that all workers share, and on disk if configured.

    Use it for the part of a sample that is the same in each epoch, such as reading, decoding and resizing a file, and
    leave the random part outside::

        @nbloader.cached
        def decode(path):
            with Image.open(path) as image:
                return np.asarray(image.convert("RGB").resize((256, 256)))

        class Photos:
            def __getitem__(self, i):
                return random_crop(decode(self.files[i]))

    A call returns what an earlier call, in any worker, returned for equal arguments and the same code. The result is a
    copy that the caller may modify. It works in worker processes, threads, and without workers;
    `nbloader.configure_cache` sets the limits, and `loader.stats()` and the dashboard show hits and misses.

    **What counts as the same.** The code of the function, and of the functions and classes that it refers to by name in
    your modules and in the notebook; the values of its globals, defaults and closure; the versions of installed
    packages; and the contents of the arguments. A string or a `Path` that names a file stands for that file, with
    its size and its modification and change times. A file that was changed in the last 50 ms is read, but not cached.
    Not detected: files that are not arguments, functions that are looked up by a computed name, environment variables,
    random numbers that the function draws, and its side effects.

    **What it keeps.** Arrays, tensors, images, and whatever can be pickled. When the memory is used up, a new entry
    replaces others only if they save clearly less time per byte. Exceptions are not cached.

    Args:
        function: A function; coroutine functions, generator functions and methods are rejected. Its arguments must
            have contents that can be compared: numbers, strings, paths, arrays, containers, instances that can be
            pickled.

    Returns:
        A callable with the same signature. `__wrapped__` is the function itself.

    Raises:
        TypeError: `function` is not such a function. Also raised by a call, if an argument or something that the code
            refers to has no contents that can be compared, such as an open file.
    """
    if isinstance(function, CachedFunction):
        return function
    given: Any = function
    if isinstance(given, (staticmethod, classmethod, type)) or not callable(given):
        hint = ": write @staticmethod above it" if isinstance(given, (staticmethod, classmethod)) else ""
        raise TypeError(f"cached takes a function, not {type(given).__name__}{hint}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{function.__qualname__} is a coroutine or generator function, whose result can be used only once: cache "
            "the function that computes its values"
        )
    return CachedFunction(function)
