"""Seeds the global random generators (`random`, NumPy, torch), saves and restores their state, converts it to JSON."""

from __future__ import annotations

import contextvars
import ctypes
import functools
import random
import struct
import sys
import threading
from typing import Any, Protocol, TypeAlias

import numpy as np

from nbloader._util.import_hooks import when_imported

State = dict[str, Any]


def _numpy_random() -> Any:  # numpy.random is imported on first use; its stubs lack get_bit_generator
    return np.random


def mix(*numbers: int, after: int = 0) -> int:
    """Combine integers into a 64-bit seed; neighbouring inputs give unrelated seeds (the finalizer of splitmix64).

    Args:
        numbers: The integers.
        after: The result for the preceding integers: `mix(b, after=mix(a))` equals `mix(a, b)`.
    """
    z = after
    for number in numbers:
        z = (z ^ (number & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z


def mix_range(start: int, stop: int, *, after: int) -> list[int]:
    """Compute `mix(number, after=after)` for each number of a range, in one vectorized operation.

    Args:
        start: The first number.
        stop: The end of the range, exclusive.
        after: See `mix`.
    """
    z = (np.arange(start, stop, dtype=np.uint64) ^ np.uint64(after)) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: list[int] = (z ^ (z >> np.uint64(31))).tolist()
    return mixed


class ThreadGenerators:
    """Random generators that one thread uses in place of the global ones."""

    __slots__ = ("numpy", "random", "seed", "torch")

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        self.random = random.Random()  # noqa: S311 - augmentation, not cryptography
        self.numpy = np.random.RandomState(0)
        self.torch: Any = None if torch is None else torch.Generator()
        """None if torch is not imported."""
        self.seed = 0
        """The last seed that was passed to `seed_everything`."""

    def seed_all(self, seed: int) -> None:
        """Seed these generators as `seed_everything` seeds the global ones, so that both draw the same numbers."""
        self.seed = seed
        self.random.seed(seed)
        self.numpy.seed(seed & 0xFFFFFFFF)
        if self.torch is not None:
            self.torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)

    def torch_manual_seed(self, seed: Any) -> Any:
        """Same as `torch.manual_seed`, for this thread's generator."""
        return self.torch.manual_seed(int(seed))

    def torch_set_rng_state(self, new_state: Any) -> None:
        """Same as `torch.set_rng_state`, for this thread's generator."""
        self.torch.set_state(new_state)


class TaskSeed:
    """The random seed of an asyncio task, and its generators, which are created when it first draws a number.

    Args:
        numbers: Combined by `mix` into the seed when the task first draws a number; a single one is the seed itself.
    """

    __slots__ = ("generators", "numbers")

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        self.generators: ThreadGenerators | None = None


_task_seed: contextvars.ContextVar[TaskSeed | None] = contextvars.ContextVar("nbloader_task_seed", default=None)


def seed_task(*numbers: int) -> None:
    """Seed the random numbers of this asyncio task, and of the tasks created in its context afterwards.

    This takes effect only on threads whose generators are `TaskGenerators`. Nothing is computed before the first number
    is drawn.

    Args:
        numbers: See `TaskSeed`.
    """
    _task_seed.set(TaskSeed(numbers))


class TaskGenerators:
    """Random generators of an event loop's thread; each asyncio task draws from its own generators (`seed_task`)."""

    def __init__(self) -> None:
        self._outside: ThreadGenerators | None = None

    def _of_task(self) -> ThreadGenerators:
        task = _task_seed.get()
        if task is None:  # not part of a sample
            if self._outside is None:
                self._outside = ThreadGenerators()
            return self._outside
        if task.generators is None:
            task.generators = ThreadGenerators()
            task.generators.seed_all(mix(*task.numbers) if len(task.numbers) > 1 else task.numbers[0])
        return task.generators

    @property
    def random(self) -> Any:
        """See `ThreadGenerators`."""
        return self._of_task().random

    @property
    def numpy(self) -> Any:
        """See `ThreadGenerators`."""
        return self._of_task().numpy

    @property
    def torch(self) -> Any:
        """See `ThreadGenerators`. The task may have imported torch after it drew other numbers."""
        generators, torch = self._of_task(), sys.modules.get("torch")
        if generators.torch is None and torch is not None:
            generators.torch = torch.Generator()
            generators.torch.manual_seed(generators.seed & 0x7FFFFFFFFFFFFFFF)
        return generators.torch

    @property
    def seed(self) -> int:
        """See `ThreadGenerators`."""
        return self._of_task().seed

    def seed_all(self, seed: int) -> None:
        """See `ThreadGenerators`."""
        self._of_task().seed_all(seed)

    def torch_manual_seed(self, seed: Any) -> Any:
        """See `ThreadGenerators`."""
        return self.torch.manual_seed(int(seed))

    def torch_set_rng_state(self, new_state: Any) -> None:
        """See `ThreadGenerators`."""
        self.torch.set_state(new_state)


class Generators(Protocol):
    """Interface of the generators that a thread may use in place of the global ones."""

    @property
    def random(self) -> Any:
        """Replaces the global generator of `random`."""

    @property
    def numpy(self) -> Any:
        """Replaces NumPy's global generator."""

    @property
    def torch(self) -> Any:
        """Replaces torch's global generator."""

    @property
    def seed(self) -> int:
        """The last seed that was passed to `seed_everything`."""

    def seed_all(self, seed: int) -> None:
        """Seed these generators as `seed_everything` seeds the global ones."""


class _ThreadLocal(threading.local):
    generators: Generators | None = None
    """None for threads that draw from the global generators."""


thread_local = _ThreadLocal()
_seed = 0
_has_seed = False
"""Whether `seed_everything` was called."""
_numpy_deferred = False
"""Whether NumPy's global generator is seeded when `numpy.random` is imported, and not before."""
_python: Any = getattr(random, "_inst")  # noqa: B009 - private
"""The generator behind the functions of `random`."""
_python_seed = super(random.Random, _python).seed if type(_python) is random.Random else None
"""Seeds that generator with an integer, without the checks of `random.seed`, which take 0.4 us. None if its class is
not `random.Random`."""


def seed_everything(seed: int) -> None:
    """Seed `random`, NumPy's global generator and, if torch is imported, torch's. Takes about 8 us.

    On a thread that has its own generators, seed those instead.
    """
    global _has_seed, _seed
    own = thread_local.generators
    if own is not None:
        own.seed_all(seed)
        return
    _seed, _has_seed = seed, True
    if _python_seed is None:
        random.seed(seed)
    else:
        _python_seed(seed)
        _python.gauss_next = None
    if not _numpy_deferred:
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the global generator is what datasets use
    elif "numpy.random" in sys.modules:
        _seed_imported_numpy()
    torch = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed would also queue a call for CUDA each time, with a formatted stack
        torch.random.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


def defer_numpy() -> None:
    """Do not import `numpy.random` to seed it. In a worker whose dataset does not use it, the import would take 12 ms.

    When it is imported, it is seeded with the seed of the last call of `seed_everything`, if there was one.
    """
    global _numpy_deferred  # noqa: PLW0603 - the generators are global too
    _numpy_deferred = True
    when_imported("numpy.random", _seed_imported_numpy)


def _seed_imported_numpy() -> None:
    global _numpy_deferred  # noqa: PLW0603 - as above
    seed = getattr(sys.modules["numpy.random"], "seed", None)
    if seed is None or not _numpy_deferred:  # another thread is still importing it, and will call this; or it was done
        return
    _numpy_deferred = False
    if _has_seed:
        seed(_seed & 0xFFFFFFFF)


def draw_seed(generator: Any = None) -> int:
    """Draw the base seed of an epoch as torch does, so that `torch.manual_seed` makes epochs reproducible.

    Args:
        generator: The `torch.Generator` to draw from; None for the global one.
    """
    import torch

    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def seed_torch() -> None:
    """Seed torch, if it is imported, with the seed of the last call of `seed_everything`."""
    generator = _torch_generator()
    if generator is not None:
        generator.manual_seed(_torch_seed())


def was_seeded() -> bool:
    """Whether other code has seeded a generator of this thread since the last call of `seed_everything`.

    Drawing numbers does not count as seeding. Neither does a seed that is derived from the seed of that call in a usual
    way, such as `torch.initial_seed() % 2**32` in torch's documentation: that seed still determines the state.
    """
    own = thread_local.generators
    seed = _seed if own is None else own.seed
    derived = (seed, *(seed % modulus for modulus in (2**32, 2**32 - 1, 2**31, 2**31 - 1, 2**63)))
    torch_generator = _torch_generator()
    if torch_generator is not None and torch_generator.initial_seed() not in derived:
        return True
    python: Any = random if own is None else own.random
    words = python.getstate()[1][:-1]
    if not any(words in _python_words(value) for value in derived):
        return True
    if own is None and _numpy_deferred and "numpy.random" not in sys.modules:
        return False
    if own is None and type(_numpy_random().get_bit_generator()) is not np.random.MT19937:
        return True  # `np.random.set_bit_generator` has replaced it
    keys = (_numpy_random() if own is None else own.numpy).get_state(legacy=False)["state"]["key"].tobytes()
    return not any(keys in _numpy_words(value & 0xFFFFFFFF) for value in derived)


def states() -> list[Any]:
    """Return the states of this thread's generators, for comparison: `random`, NumPy, torch (None if not imported).

    Takes about 5 us, or 70 us if the memory layout of the generators is unknown or the thread has its own generators.
    """
    own = thread_local.generators
    torch_generator = _torch_generator()
    torch_state = None if torch_generator is None else torch_generator.get_state().numpy().tobytes()
    python_state = _python_memory.save() if own is None else own.random.getstate()
    if own is None:
        generator, words, left_over, *_ = _numpy_memory.save()
        if left_over is not None:
            return [python_state, (id(generator), words, left_over), torch_state]
    numpy_state = (_numpy_random() if own is None else own.numpy).get_state(legacy=False)
    words = [value.tobytes() if isinstance(value, np.ndarray) else value for value in numpy_state["state"].values()]
    return [python_state, (words, numpy_state.get("has_gauss")), torch_state]


def _python_words(seed: int) -> list[tuple[int, ...]]:
    """Return the state words of a new `random.Random(seed)`: before the first draw, and after up to 624 draws."""
    generator = random.Random(seed)  # noqa: S311 - to compare with
    words = [generator.getstate()[1][:-1]]
    generator.getrandbits(32)
    return [*words, generator.getstate()[1][:-1]]


def _numpy_words(seed: int) -> list[bytes]:
    """Return the state words of a new `np.random.RandomState(seed)`, before any draw and after up to 624 draws."""
    generator = np.random.MT19937()
    generator._legacy_seeding(seed)
    words = [generator.state["state"]["key"].tobytes()]
    generator.random_raw()
    return [*words, generator.state["state"]["key"].tobytes()]


def _torch_generator() -> Any:
    """Torch's generator for this thread; None if torch is not imported."""
    own = thread_local.generators
    if own is not None:
        return own.torch
    torch = sys.modules.get("torch")
    return None if torch is None else torch.random.default_generator


def _torch_seed() -> int:
    own = thread_local.generators
    return (_seed if own is None else own.seed) & 0x7FFFFFFFFFFFFFFF


_GAUSS_FLAG = 8
"""Size of NumPy's flag in front of the cached normal number, bytes."""
_MT19937_KEYS = 4 * 624
"""Size of a Mersenne twister's state words, bytes. NumPy stores the position after the words, CPython before them."""
_MT19937_SIZE = _MT19937_KEYS + 4


def _memory_at(address: int) -> memoryview:
    """Return a view of a Mersenne twister's state; it is valid as long as the generator exists."""
    return memoryview((ctypes.c_char * _MT19937_SIZE).from_address(address)).cast("B")


class _PythonMemory:
    """Accesses the memory of the generator behind the functions of `random`, to copy its state in 0.2 us, not 10 us.

    `getstate` and `setstate` convert 625 words one by one. In CPython the words are stored in the generator object,
    right after the object header. This layout is checked once; if it differs, those functions are used.
    """

    def __init__(self) -> None:
        self._memory = _memory_at(id(_python) + object.__basicsize__) if self._is_known() else None

    @staticmethod
    def _is_known() -> bool:
        if sys.implementation.name != "cpython" or type(_python) is not random.Random:
            return False
        probe = random.Random(1)  # noqa: S311 - not used as a generator
        probe.random()
        *words, position = probe.getstate()[1]
        return bytes(_memory_at(id(probe) + object.__basicsize__)) == np.array([position, *words], np.uint32).tobytes()

    def save(self) -> Any:
        """Return a copy of the state."""
        return _python.getstate() if self._memory is None else (bytes(self._memory), _python.gauss_next)

    def restore(self, state: Any) -> None:
        """Restore a state that `save` returned."""
        if self._memory is None:
            _python.setstate(state)
        else:
            self._memory[:], _python.gauss_next = state


_NumpyState: TypeAlias = "tuple[Any, Any, Any, memoryview | None, memoryview | None]"
"""The generator, its state, the cached normal number, and the memory of the latter two; None if it is not known."""


class _NumpyMemory:
    """Accesses the memory of NumPy's global generator: copies its state in 0.3 us instead of 56 us.

    `numpy.random.get_state` and `set_state` convert 624 words one by one, which would take most of the time of a small
    batch with `num_workers=0`. The address of the words is part of NumPy's interface (`BitGenerator.ctypes`). The
    cached normal number, the second one of a pair, is stored in the `RandomState` itself. This layout is checked once;
    if it differs, NumPy's functions are used.
    """

    def __init__(self) -> None:
        self._known: tuple[Any, memoryview | None, memoryview | None] = (None, None, None)

    def _memory_of(self, generator: Any) -> tuple[memoryview | None, memoryview | None]:
        """Return the memory of the global generator and of the cached normal number; None if it is not known."""
        known, memory, gauss = self._known
        if known is not generator:
            memory = gauss = None
            if _memory_layout_known(generator.__class__):
                gauss = _gauss_memory(getattr(np.random.standard_normal, "__self__", None))
                memory = None if gauss is None else _memory_at(generator.ctypes.state_address)
            self._known = generator, memory, gauss
        return memory, gauss

    def save(self) -> _NumpyState:
        """Return a copy of the state."""
        numpy_random = _numpy_random()
        generator = numpy_random.get_bit_generator()
        memory, gauss = self._memory_of(generator)
        if memory is None or gauss is None:
            return generator, numpy_random.get_state(legacy=False), None, None, None
        return generator, bytes(memory), bytes(gauss), memory, gauss

    def restore(self, saved: _NumpyState) -> None:
        """Restore what `save` returned."""
        generator, state, left_over, memory, gauss = saved
        numpy_random = _numpy_random()
        if numpy_random.get_bit_generator() is not generator:
            numpy_random.set_bit_generator(generator)
        if memory is None or gauss is None:
            numpy_random.set_state(state)
        else:
            memory[:], gauss[:] = state, left_over


def _gauss_memory(generator: Any) -> memoryview | None:
    """Return the memory of a `RandomState` that holds its cached normal number and the flag for it; None if unknown.

    In NumPy these are `int has_gauss; double gauss` in a C structure. Their offset is found by searching another
    `RandomState` whose cached number is known.
    """
    if type(generator) is not np.random.RandomState:
        return None
    probe: Any = np.random.RandomState(1)
    size = np.random.RandomState.__basicsize__
    words: Any = probe.get_state(legacy=False)
    number = 0.1234567890123

    def content(has_gauss: int) -> bytes:
        probe.set_state({**words, "has_gauss": has_gauss, "gauss": number * has_gauss})
        return bytes((ctypes.c_char * size).from_address(id(probe)))

    with_number, without = content(1), content(0)
    begin = with_number.find(struct.pack("d", number)) - _GAUSS_FLAG
    end = begin + _GAUSS_FLAG + 8
    if begin < 0 or with_number[begin:end] != struct.pack("id", 1, number) or any(without[begin:end]):
        return None
    return memoryview((ctypes.c_char * (end - begin)).from_address(id(generator) + begin)).cast("B")


@functools.cache
def _memory_layout_known(generator: type) -> bool:
    """Whether a NumPy bit generator has the memory layout of the Mersenne twister in NumPy 1.17 to 2."""
    if generator is not np.random.MT19937:
        return False
    probe = np.random.MT19937(1)
    state: Any = probe.state["state"]
    expected = state["key"].tobytes() + int(state["pos"]).to_bytes(4, sys.byteorder)
    return bytes(_memory_at(probe.ctypes.state_address)) == bytes(expected)


_python_memory = _PythonMemory()
_numpy_memory = _NumpyMemory()


class PreservedRandomState:
    """Saves the state of this thread's generators. As a context manager, it restores the state on exit."""

    __slots__ = ("_numpy_state", "_own", "_python_state", "_torch", "_torch_state")

    def __enter__(self) -> PreservedRandomState:
        """Save the state."""
        self.save()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Restore the state."""
        self.restore()

    def save(self) -> None:
        """Save the state."""
        own = self._own = thread_local.generators
        self._torch = _torch_generator()
        self._python_state: Any = _python_memory.save() if own is None else own.random.getstate()
        self._numpy_state: Any = _numpy_memory.save() if own is None else own.numpy.get_state(legacy=False)
        self._torch_state = None if self._torch is None else self._torch.get_state()

    def restore(self) -> None:
        """Restore the state."""
        if self._own is None:
            _python_memory.restore(self._python_state)
            _numpy_memory.restore(self._numpy_state)
        else:
            self._own.random.setstate(self._python_state)
            self._own.numpy.set_state(self._numpy_state)
        if self._torch is not None:
            self._torch.set_state(self._torch_state)


class LazyRandomState(PreservedRandomState):
    """Restores the state of the generators of this thread if they were seeded."""

    __slots__ = ("_saved",)

    def __init__(self) -> None:
        self._saved = False

    def seed(self, seed: int) -> None:
        """Seed all generators. The first call saves their state before it seeds them."""
        if not self._saved:
            self.save()
            self._saved = True  # only once the save is complete: an interrupt may come at any moment
        seed_everything(seed)

    def restore(self) -> None:
        """Restore the state."""
        if self._saved:
            super().restore()
            self._saved = False


def dump_generator(generator: Any) -> str:
    """Return the state of a `torch.Generator` as text, about 7 kB."""
    return pack(generator.get_state().numpy())


def load_generator(generator: Any, state: str) -> None:
    """Restore the state of a `torch.Generator`.

    Raises:
        ValueError: `state` is not the state of a generator.
    """
    import torch

    try:
        generator.set_state(torch.frombuffer(bytearray(_decoded(state)), dtype=torch.uint8))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"the state of a generator cannot be read: {error}") from error


def dump_globals(*, orders_only: bool) -> State:
    """Return the state of this thread's generators, usually the global ones of torch, `random` and NumPy.

    Args:
        orders_only: Whether to return only the state of the generator from which sampling orders are drawn. That is
            torch's if torch is imported, otherwise all of them.
    """
    own, torch_generator = thread_local.generators, _torch_generator()
    state: State = {} if torch_generator is None else {"torch": dump_generator(torch_generator)}
    if torch_generator is None or not orders_only:
        version, words, gauss = (random if own is None else own.random).getstate()
        state["random"] = [version, _pack(words), gauss]
        numpy_state = np.random.get_state() if own is None else own.numpy.get_state()  # noqa: NPY002
        _name, keys, position, has_gauss, cached = numpy_state
        state["numpy"] = [_pack(keys), int(position), int(has_gauss), float(cached)]
    return state


def load_globals(state: State | int) -> None:
    """Restore the state of this thread's generators (usually the global ones), or seed them with an integer.

    Raises:
        ValueError: `state` was not made by `dump_globals`.
    """
    if isinstance(state, int):
        seed_everything(state)
        return
    own, torch_generator = thread_local.generators, _torch_generator()
    try:
        if torch_generator is not None:
            load_generator(torch_generator, state["torch"])
        if torch_generator is None or "random" in state:
            version, words, gauss = state["random"]
            (random if own is None else own.random).setstate((version, tuple(_unpack(words).tolist()), gauss))
            keys, position, has_gauss, cached = state["numpy"]
            numpy_state = ("MT19937", _unpack(keys), position, has_gauss, cached)
            (np.random if own is None else own.numpy).set_state(numpy_state)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the state of the random generators cannot be read: {error}") from error


def pack(array: Any) -> str:
    """Return the bytes of an array as base64 text."""
    import base64  # here and below only: workers do not need it

    return base64.b64encode(np.asarray(array).tobytes()).decode()


def _decoded(text: str) -> bytes:
    import base64

    return base64.b64decode(text, validate=True)


def _pack(words: Any) -> str:
    return pack(np.asarray(words, "<u4"))


def _unpack(text: str) -> Any:
    return np.frombuffer(_decoded(text), "<u4").astype(np.uint32)
