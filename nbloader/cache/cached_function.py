"""`cached`: mark a deterministic function, so that each result is computed once for all workers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from nbloader._util import rng
from nbloader.cache import process_cache
from nbloader.cache.digest import SIZE, Composite, Digest, DigestError, Walk
from nbloader.cache.file_version import FileVersion
from nbloader.cache.sample_cache import MISSING, SampleCache

P = ParamSpec("P")
R = TypeVar("R")

SLOW_NS = 1_000_000
"""CPU time, ns. If comparing the objects that a function refers to takes longer than this, a warning names them."""
WATCHED = 3
"""Number of calls per process, not counting cache hits, that are checked for drawing random numbers and for changing
what the function depends on."""
MAX_FIXED = 16
"""Maximum number of objects passed for `fixed` parameters whose digests a function remembers."""
_MAIN = ("__main__", "__mp_main__")
_clock = time.perf_counter_ns


class _Fixed(NamedTuple):
    """An object that does not change."""

    value: Any
    """The object: while it is kept alive, no other one has its identity."""
    digest: bytes


class _Key(NamedTuple):
    """The key of a call."""

    value: bytes
    files: list[FileVersion]
    folders: list[str]

    def settled(self) -> bool:
        """Whether a change that is made now to one of the files would be detected."""
        return all(file.settled() for file in self.files)


class CachedFunction(Composite, Generic[P, R]):
    """A function whose results are cached. `nbloader.cached` creates it; `__wrapped__` is the function."""

    __qualname__: str

    def __init__(
        self, function: Callable[P, R], version: Any = None, depends: Sequence[Any] = (), fixed: Sequence[str] = ()
    ) -> None:
        self.__wrapped__: Callable[P, R] = function
        functools.update_wrapper(self, function)
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._version = version
        self._depends = tuple(depends)
        self._fixed = tuple(fixed)
        self._fixed_digests: dict[int, _Fixed] = {}
        """The objects that were passed for `fixed` parameters, by identity; threads share it."""
        self._digest: Digest | None = None
        self._watched = WATCHED
        self._changes = 0
        process_cache.add_user(self)

    @property
    def digest_parts(self) -> tuple[Any, ...]:
        """What stands for this function in the keys of functions that call it."""
        return self.__wrapped__, self._version, self._depends, self._fixed

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return a copy of what the function would return, which the caller may modify.

        Raises:
            TypeError: See `cached`.
            Exception: Whatever the function raises.
        """
        cache = process_cache.current()
        key = self._key(cache, args, kwargs)
        found: R = cache.get(key.value)
        if found is not MISSING:
            return found
        for folder in key.folders:
            cache.warn_once(
                (self._name, "folder"),
                f"the cached function {self._name} was called with the folder {folder!r}: changes to the files "
                "in it are not noticed. Pass the path of the file that it reads.",
            )
        states = rng.states() if self._watched else None
        begin = _clock()
        value = self.__wrapped__(*args, **kwargs)
        cost = _clock() - begin
        if states is not None:
            self._watched -= 1
            self._check_draws(cache, states)
        copy = cache.copy(value, self._name)
        if copy is None:
            return value
        if self._still(cache, key, args, kwargs) and key.settled():
            cache.put(key.value, copy.entry, cost)
        copied: R = copy.value
        return copied

    def _key(self, cache: SampleCache, args: Any, kwargs: Any) -> _Key:
        function = self._current_digest(cache)
        arguments = Walk(function.names)
        self._visit_arguments(arguments, args, kwargs)
        value = arguments.digest()
        files = [*function.files, *arguments.files]
        if function.has_modules and not arguments.names <= function.names:
            # Code among the arguments may use modules that the function reaches, so that both are one walk.
            joint = self._function_walk(record=False)
            self._visit_arguments(joint, args, kwargs)
            value, files = joint.digest(), joint.files
        sha = hashlib.sha256(function.value + value, usedforsecurity=False)
        return _Key(sha.digest()[:SIZE], files, arguments.folders)

    def _visit_arguments(self, walk: Walk, args: Any, kwargs: Any) -> None:
        try:
            if self._fixed:
                given = inspect.signature(self.__wrapped__).bind(*args, **kwargs)
                for name in given.arguments.keys() & self._fixed:
                    given.arguments[name] = self._fixed_digest(given.arguments[name])
                args, kwargs = given.args, given.kwargs
            walk.visit(args)
            walk.visit(tuple(kwargs.items()))  # in their order, which the function can see
        except DigestError as error:
            raise TypeError(
                f"an argument of the cached function {self._name} cannot be compared with that of other calls: "
                f"{error}. Pass what it is made of, such as the path of a file, and open it in the function."
            ) from error

    def _fixed_digest(self, obj: Any) -> bytes:
        """Return the digest of an object that does not change. It is computed once per process."""
        known = self._fixed_digests.get(id(obj))
        if known is None:
            walk = Walk(files=False)
            walk.visit(obj)
            known = _Fixed(obj, walk.digest())
            for oldest in list(self._fixed_digests)[: 1 - MAX_FIXED]:
                self._fixed_digests.pop(oldest, None)
            self._fixed_digests[id(obj)] = known
        return known.digest

    def _function_walk(self, *, record: bool) -> Walk:
        walk = Walk(record=record, lenient=bool(self._version is not None or self._depends))
        walk.visit(self.__wrapped__)
        walk.visit(self._version)
        for item in self._depends:
            if isinstance(item, ModuleType):
                walk.visit_whole(item)
            else:
                walk.visit(item)
        return walk

    def _current_digest(self, cache: SampleCache) -> Digest:
        """Return the digest of the code. It is computed again if anything that the code reaches has changed."""
        digest = self._digest
        if digest is not None:
            begin = time.thread_time_ns() if digest.has_data else 0
            holds = digest.holds()
            took = time.thread_time_ns() - begin if begin else 0
            if holds and took > SLOW_NS and (slowest := digest.slowest()):
                cache.warn_once(
                    (self._name, "mutable"),
                    f"the cached function {self._name} refers to {', '.join(map(repr, slowest))}, which could "
                    f"change and is compared at each call: {took / 1e6:,.1f} ms. Pass what it needs as an argument "
                    "(decode(files[i]), not decode(i)).",
                )
            if holds:
                return digest
        try:
            self._digest = digest = Digest(self._function_walk(record=True))
        except DigestError as error:
            *outer, name = error.names or [self._name]
            through = f" (reached through {', '.join(map(repr, outer))})" if outer else ""
            raise TypeError(
                f"{self._name} cannot be cached, because nbloader cannot tell when its result changes. It refers to "
                f"{name!r}{through}: {error}. Pass it as an argument that can be compared, or open it in the function. "
                "Or declare when results change: @nbloader.cached(version=1), with another number after each change, "
                "or @nbloader.cached(depends=[path]) with the files, functions and values that stand for it."
            ) from error
        return digest

    def _still(self, cache: SampleCache, key: _Key, args: Any, kwargs: Any) -> bool:
        """Whether the call would have the same key now. If not, its result may be that of neither key."""
        try:
            same = self._key(cache, args, kwargs).value == key.value
        except TypeError:
            same = False
        self._changes = 0 if same else self._changes + 1
        if self._changes == WATCHED:
            cache.warn_once(
                (self._name, "changes"),
                f"nbloader does not keep results of the cached function {self._name}, because its arguments, its "
                "files, or values that it refers to change while it runs. Let it change only "
                "objects that it has created.",
            )
        return same

    def _check_draws(self, cache: SampleCache, states: list[Any]) -> None:
        """Warn if the state of one of this thread's random number generators has changed."""
        now = rng.states()
        if any(before is not None and before != after for before, after in zip(states, now, strict=True)):
            cache.warn_once(
                (self._name, "draws"),
                f"the cached function {self._name} draws random numbers, but for equal arguments it returns the same "
                "result in each epoch. Move the random part out of the function.",
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
        return CachedFunction, (self.__wrapped__, self._version, self._depends, self._fixed)

    def __repr__(self) -> str:
        return f"<cached {self.__wrapped__!r}>"


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Context manager in which cached functions of this process compute each result, and keep none."""

    def call(function: CachedFunction[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function.__wrapped__(*args, **kwargs)

    cls: Any = CachedFunction
    usual, cls.__call__ = cls.__call__, call
    try:
        yield
    finally:
        cls.__call__ = usual


@overload
def cached(function: Callable[P, R], /) -> CachedFunction[P, R]: ...


@overload
def cached(
    function: None = None, /, *, version: Any = None, depends: Sequence[Any] = (), fixed: Sequence[str] = ()
) -> Callable[[Callable[P, R]], CachedFunction[P, R]]: ...


def cached(
    function: Callable[..., Any] | None = None,
    /,
    *,
    version: Any = None,
    depends: Sequence[Any] = (),
    fixed: Sequence[str] = (),
) -> Any:
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
    copy that the caller may modify. The cache works in worker processes, in threads, and without workers.
    `nbloader.configure_cache` sets its limits, and `loader.stats()` and the dashboard show hits and misses.

    **What counts as the same.** Calls are the same if all of this is equal:

    - the code of the function, and of the functions and classes of your own that it reaches by name: through globals,
      closures, defaults, members, containers, partial objects, bound methods, and attributes of your own modules
    - the values and arrays that it reaches in the same ways, and the contents of the arguments
    - the files whose paths are among these: real path, size, inode, and times of modification and change
    - the versions of Python and of the packages that it reaches

    Code is your own unless its file belongs to Python or to an installed package. All this is compared again before a
    result is kept. Nothing is kept if a file was changed in the 50 ms before (2.5 s on file systems that store whole
    seconds), or if the function draws from a generator object, such as a global `rng`.

    **What does not count,** and what to do instead:

    - Files whose path is written or computed in the function, in a folder that is passed, in an array or as `bytes`:
      pass the path as an argument, or `depends=[path]`.
    - Names that are computed (`getattr(module, name)`, `sys.modules[name]`, a module's `__getattr__`, `eval`) or in
      `builtins`: `depends=[module]`.
    - A dict that only one function of the module uses, and fills (`_kept[key] = value`): `version`.
    - Environment variables, the working directory, the time, the network, the accelerator: pass the value as an
      argument.
    - Settings of packages, and patches of their code: `version`.
    - Parts that an object leaves out of its pickle, locks, weak references, annotations and docstrings of classes:
      `version`.
    - Packages that are upgraded while the kernel runs: restart the kernel.
    - Random numbers, and side effects such as printing or appending to an argument: leave them to the caller.
    - Identity of immutable objects, the order of sets, strides of arrays: nothing helps.

    **What it keeps.** Arrays, tensors, images, and whatever can be pickled. When the memory is used up, a new entry
    replaces others only if they save clearly less time per byte. Exceptions are not cached.

    Args:
        function: A function, but not a coroutine function, a generator function or a method. nbloader must be able to
            compare its arguments by their contents: numbers, strings, paths, arrays, containers, and instances that can
            be pickled.
        version: A value that is part of the key. Change it whenever something changes that does not count by itself.
        depends: Paths, functions, classes, modules and values that are part of the key as if the function reached them
            by name. Of a module of your own, everything in it counts. If `version` or `depends` is given, the key
            leaves out objects that the function reaches by name and that cannot be pickled, such as an open database,
            and no error is raised.
        fixed: Names of parameters that get a large object which does not change, such as a table. Its contents are
            compared once per process instead of at each call. Changes of the object in place are not noticed, nor are
            changes of files that it names.

    Returns:
        A callable with the same signature, whose `__wrapped__` is the function itself. Without a function, a decorator.

    Raises:
        TypeError: `function` is not such a function, or has no parameter that `fixed` names. A call also raises it if
            nbloader cannot compare an argument, or something that the code reaches, such as an open file.
    """
    if isinstance(depends, (str, bytes)) or not isinstance(depends, Sequence):
        raise TypeError(f"depends must be a list of paths, functions, modules and values, not {depends!r}")
    if isinstance(fixed, (str, bytes)) or not isinstance(fixed, Sequence):
        raise TypeError(f"fixed must be a list of names of parameters, not {fixed!r}")
    if function is None:
        return functools.partial(_cached, version=version, depends=depends, fixed=fixed)
    return _cached(function, version, depends, fixed)


def _cached(
    function: Callable[..., Any], version: Any, depends: Sequence[Any], fixed: Sequence[str]
) -> CachedFunction[..., Any]:
    if isinstance(function, CachedFunction):
        return function
    given: Any = function
    if isinstance(given, (staticmethod, classmethod, type)) or not callable(given):
        hint = ": write @staticmethod above it" if isinstance(given, (staticmethod, classmethod)) else ""
        raise TypeError(f"cached takes a function, not {type(given).__name__}{hint}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{function.__qualname__} is a coroutine or generator function, whose result can be used only once. Cache "
            "the function that computes its values"
        )
    unknown = set(fixed) - set(inspect.signature(function).parameters) if fixed else set()
    if unknown:
        raise TypeError(f"fixed names {sorted(unknown)}, which are no parameters of {function.__qualname__}")
    return CachedFunction(function, version, depends, fixed)
