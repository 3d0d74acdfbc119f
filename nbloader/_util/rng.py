"""Seeds the global random generators (`random`, NumPy, torch), saves and restores their state, converts it to JSON."""

from __future__ import annotations

import base64
import contextvars
import random
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

State = dict[str, Any]


_numpy_random: Any = np.random  # imported here, not in each forked worker; its stubs lack get_bit_generator


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


class WorkerGenerators:
    """Random generators of a worker thread. The names of the attributes are those of `get_worker_info().rng` in torch.

    With one seed, `random_generator` and `torch_generator` draw the same numbers as the global generators of `random`
    and torch in a worker process.
    """

    def __init__(self) -> None:
        self.random_generator = random.Random()  # noqa: S311 - augmentation, not cryptography
        self._numpy: np.random.Generator | None = None
        self._torch: Any = None
        self._seed = 0

    @property
    def numpy_generator(self) -> np.random.Generator:
        """A `numpy.random.Generator`, created when it is first used."""
        if self._numpy is None:
            self._numpy = np.random.Generator(np.random.PCG64(self._seed))
        return self._numpy

    @property
    def torch_generator(self) -> torch.Generator:
        """A `torch.Generator`, created when it is first used: importing torch takes time."""
        if self._torch is None:
            import torch

            self._torch = torch.Generator().manual_seed(self._seed & 0x7FFFFFFFFFFFFFFF)
        return self._torch  # type: ignore[no-any-return]

    def seed_all(self, seed: int) -> None:
        """Seed all generators. They stay the same objects."""
        self._seed = seed
        self.random_generator.seed(seed)
        if self._numpy is not None:
            self._numpy.bit_generator.state = np.random.PCG64(seed).state
        if self._torch is not None:
            self._torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)

    def state(self) -> tuple[Any, ...]:
        """Return the state of all generators."""
        numpy_state = None if self._numpy is None else self._numpy.bit_generator.state
        torch_state = None if self._torch is None else self._torch.get_state()
        return self._seed, self.random_generator.getstate(), numpy_state, torch_state

    def set_state(self, state: tuple[Any, ...]) -> None:
        """Restore what `state` returned."""
        self._seed, python_state, numpy_state, torch_state = state
        self.random_generator.setstate(python_state)
        if self._numpy is not None:
            self._numpy.bit_generator.state = numpy_state or np.random.PCG64(self._seed).state
        if self._torch is not None:
            if torch_state is None:
                self._torch.manual_seed(self._seed & 0x7FFFFFFFFFFFFFFF)
            else:
                self._torch.set_state(torch_state)


class TaskSeed:
    """The random seed of an asyncio task, and its generators, which are created when they are first used.

    Args:
        numbers: Combined by `mix` into the seed; a single one is the seed itself.
    """

    __slots__ = ("generators", "numbers")

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        self.generators: WorkerGenerators | None = None


_task_seed: contextvars.ContextVar[TaskSeed | None] = contextvars.ContextVar("nbloader_task_seed", default=None)


def seed_task(*numbers: int) -> None:
    """Seed the `TaskGenerators` of this asyncio task, and of the tasks created in its context afterwards.

    Nothing is computed before they are used.

    Args:
        numbers: See `TaskSeed`.
    """
    _task_seed.set(TaskSeed(numbers))


class TaskGenerators:
    """Random generators of an event loop: each asyncio task has `WorkerGenerators` of its own (`seed_task`)."""

    def __init__(self) -> None:
        self._outside = WorkerGenerators()

    def _of_task(self) -> WorkerGenerators:
        task = _task_seed.get()
        if task is None:  # not part of a sample
            return self._outside
        if task.generators is None:
            task.generators = WorkerGenerators()
            task.generators.seed_all(mix(*task.numbers) if len(task.numbers) > 1 else task.numbers[0])
        return task.generators

    @property
    def random_generator(self) -> random.Random:
        """See `WorkerGenerators`."""
        return self._of_task().random_generator

    @property
    def numpy_generator(self) -> np.random.Generator:
        """See `WorkerGenerators`."""
        return self._of_task().numpy_generator

    @property
    def torch_generator(self) -> torch.Generator:
        """See `WorkerGenerators`."""
        return self._of_task().torch_generator

    def seed_all(self, seed: int) -> None:
        """See `WorkerGenerators`."""
        self._of_task().seed_all(seed)

    def state(self) -> tuple[Any, ...]:
        """See `WorkerGenerators`."""
        return self._of_task().state()

    def set_state(self, state: tuple[Any, ...]) -> None:
        """See `WorkerGenerators`."""
        self._of_task().set_state(state)


Generators: TypeAlias = WorkerGenerators | TaskGenerators
"""Random generators of a worker thread, or of a sample of an asynchronous dataset, seeded for each batch."""


class _ThreadLocal(threading.local):
    generators: Generators | None = None
    """The generators of a worker thread; None for other threads, which draw from the global ones."""


thread_local = _ThreadLocal()
_seed = 0


def seed_everything(seed: int) -> None:
    """Seed `random`, NumPy's global generator and, if torch is imported, torch's. Takes about 8 us.

    On a worker thread, seed its own generators instead.
    """
    global _seed  # noqa: PLW0603 - the generators are global too
    own = thread_local.generators
    if own is not None:
        own.seed_all(seed)
        return
    _seed = seed
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the global generator is what datasets use
    torch = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed would also queue a call for CUDA each time, with a formatted stack
        torch.random.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


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
        generator.manual_seed(_seed & 0x7FFFFFFFFFFFFFFF)


def was_seeded() -> bool:
    """Whether other code has seeded a global generator since the last call of `seed_everything`.

    A seed that is derived from the seed of that call in a usual way, such as `torch.initial_seed() % 2**32` in torch's
    documentation, does not count: that seed still determines the state. Numbers drawn from `random` or NumPy do count,
    since they change the state as a seed does.
    """
    derived = (_seed, *(_seed % modulus for modulus in (2**32, 2**32 - 1, 2**31, 2**31 - 1, 2**63)))
    torch_generator = _torch_generator()
    if torch_generator is not None and torch_generator.initial_seed() not in derived:
        return True
    python_state = random.getstate()
    if all(python_state != random.Random(value).getstate() for value in derived):  # noqa: S311 - to compare with
        return True
    numpy_state = _numpy_state(_numpy_random)
    return all(numpy_state != _numpy_state(np.random.RandomState(value & 0xFFFFFFFF)) for value in derived)


def states() -> list[Any]:
    """Return the states of the global generators, for comparison: `random`, NumPy, torch (None if not imported)."""
    torch_generator = _torch_generator()
    return [
        random.getstate(),
        _numpy_state(_numpy_random),
        None if torch_generator is None else torch_generator.get_state().numpy().tobytes(),
    ]


def _numpy_state(generator: Any) -> tuple[Any, ...]:
    """Return the state of a `RandomState`, or of NumPy's global one, in a form that can be compared."""
    state = generator.get_state(legacy=False)
    words = [value.tobytes() if isinstance(value, np.ndarray) else value for value in state["state"].values()]
    return state["bit_generator"], words, state.get("has_gauss"), state.get("gauss")


def _torch_generator() -> Any:
    """Torch's global generator; None if torch is not imported."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.random.default_generator


class PreservedRandomState:
    """Saves the state of the generators that `seed_everything` seeds. As a context manager, it restores it on exit."""

    __slots__ = ("_numpy_generator", "_numpy_state", "_own", "_own_state", "_python_state", "_torch", "_torch_state")

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
        if own is not None:
            self._own_state = own.state()
            return
        self._torch = _torch_generator()
        self._torch_state = None if self._torch is None else self._torch.get_state()
        self._python_state = random.getstate()
        self._numpy_generator = _numpy_random.get_bit_generator()
        self._save_numpy()

    def restore(self) -> None:
        """Restore the state."""
        if self._own is not None:
            self._own.set_state(self._own_state)
            return
        random.setstate(self._python_state)
        if _numpy_random.get_bit_generator() is not self._numpy_generator:
            _numpy_random.set_bit_generator(self._numpy_generator)
        self._restore_numpy()
        if self._torch is not None:
            self._torch.set_state(self._torch_state)

    def _save_numpy(self) -> None:
        self._numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator

    def _restore_numpy(self) -> None:
        np.random.set_state(self._numpy_state)  # noqa: NPY002 - the global generator


_lent: Any = None
"""A bit generator that NumPy's functions use in place of their own while a `LazyRandomState` is seeded."""


class LazyRandomState(PreservedRandomState):
    """Restores the state of the generators of this thread if they were seeded.

    In the meantime NumPy's functions draw from another bit generator. Copying the state of theirs would take 150 us:
    NumPy converts 624 words one by one. The price is that NumPy forgets the second normal number of a pair, if it has
    kept one from a call before. The state is copied where the other bit generator is in use already, which happens if
    a sample iterates a loader.
    """

    __slots__ = ("_copied", "_saved")

    def __init__(self) -> None:
        self._saved = False
        self._copied = False

    def seed(self, seed: int) -> None:
        """Seed all generators. The first call saves their state before it seeds them."""
        global _lent  # noqa: PLW0603 - the generators are global too
        if not self._saved:
            self.save()
            self._saved = True  # only once the save is complete: an interrupt may come at any moment
            if self._own is None and not self._copied:
                if _lent is None:
                    _lent = np.random.MT19937()
                _numpy_random.set_bit_generator(_lent)
        seed_everything(seed)

    def restore(self) -> None:
        """Restore the state."""
        if self._saved:
            super().restore()
            self._saved = False

    def _save_numpy(self) -> None:
        self._copied = self._numpy_generator is _lent
        if self._copied:
            super()._save_numpy()

    def _restore_numpy(self) -> None:
        if self._copied:
            super()._restore_numpy()


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
    """Return the state of the global generators of torch, `random` and NumPy.

    Args:
        orders_only: Whether to return only the state of the generator from which sampling orders are drawn. That is
            torch's if torch is imported, otherwise all of them.
    """
    torch_generator = _torch_generator()
    state: State = {} if torch_generator is None else {"torch": dump_generator(torch_generator)}
    if torch_generator is None or not orders_only:
        version, words, gauss = random.getstate()
        state["random"] = [version, _pack(words), gauss]
        _name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
        state["numpy"] = [_pack(keys), int(position), int(has_gauss), float(cached)]
    return state


def load_globals(state: State | int) -> None:
    """Restore the state of the global generators, or seed them with an integer.

    Raises:
        ValueError: `state` was not made by `dump_globals`.
    """
    if isinstance(state, int):
        seed_everything(state)
        return
    torch_generator = _torch_generator()
    try:
        if torch_generator is not None:
            load_generator(torch_generator, state["torch"])
        if torch_generator is None or "random" in state:
            version, words, gauss = state["random"]
            random.setstate((version, tuple(_unpack(words).tolist()), gauss))
            keys, position, has_gauss, cached = state["numpy"]
            np.random.set_state(("MT19937", _unpack(keys), position, has_gauss, cached))  # noqa: NPY002
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"the state of the random generators cannot be read: {error}") from error


def pack(array: Any) -> str:
    """Return the bytes of an array as base64 text."""
    return base64.b64encode(np.asarray(array).tobytes()).decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _pack(words: Any) -> str:
    return pack(np.asarray(words, "<u4"))


def _unpack(text: str) -> Any:
    return np.frombuffer(_decoded(text), "<u4").astype(np.uint32)
