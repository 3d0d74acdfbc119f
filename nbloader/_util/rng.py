"""Global random generators (`random`, NumPy, torch): seeding, saving and restoring their state, state as JSON."""

from __future__ import annotations

import base64
import ctypes
import functools
import random
import sys
import threading
from typing import Any

import numpy as np

State = dict[str, Any]


def _numpy_random() -> Any:  # numpy.random is imported when it is first used; its stubs lack get_bit_generator
    return np.random


def mix(*numbers: int, after: int = 0) -> int:
    """Combine integers into a 64-bit seed; neighbouring inputs give unrelated seeds (the finalizer of splitmix64).

    Args:
        numbers: The integers.
        after: What the integers before them gave: `mix(b, after=mix(a))` is `mix(a, b)`.
    """
    z = after
    for number in numbers:
        z = (z ^ (number & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z


class ThreadGenerators:
    """Random generators of one thread, which takes them in place of the global ones."""

    __slots__ = ("numpy", "random", "seed", "torch")

    def __init__(self) -> None:
        import torch

        self.random = random.Random()  # noqa: S311 - augmentation, not cryptography
        self.numpy = np.random.RandomState(0)
        self.torch = torch.Generator()
        self.seed = 0
        """What `seed_everything` was called with last."""

    def seed_all(self, seed: int) -> None:
        """Seed them as `seed_everything` seeds the global ones, so that they draw the same numbers."""
        self.seed = seed
        self.random.seed(seed)
        self.numpy.seed(seed & 0xFFFFFFFF)
        self.torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)

    def torch_manual_seed(self, seed: Any) -> Any:
        """As `torch.manual_seed`."""
        return self.torch.manual_seed(int(seed))

    def torch_set_rng_state(self, new_state: Any) -> None:
        """As `torch.set_rng_state`."""
        self.torch.set_state(new_state)


class _ThreadLocal(threading.local):
    generators: ThreadGenerators | None = None
    """None for threads that draw from the global generators."""


thread_local = _ThreadLocal()
_seed = 0


def seed_everything(seed: int) -> None:
    """Seed `random`, NumPy's global generator and, if torch is imported, torch's. Takes about 8 us.

    On a thread that has generators of its own, seed these instead.
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


def seed_torch() -> None:
    """Seed torch, if it is imported, with the seed of the last call of `seed_everything`."""
    generator = _torch_generator()
    if generator is not None:
        generator.manual_seed(_torch_seed())


def was_seeded() -> bool:
    """Whether other code has seeded a generator of this thread since the last call of `seed_everything`.

    Numbers that were drawn since do not count, nor does a seed that is derived from the same one in the usual way, as
    `torch.initial_seed() % 2**32` in torch's documentation: the generators then follow from the seed all the same.
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
    if own is None and type(_numpy_random().get_bit_generator()) is not np.random.MT19937:
        return True  # `np.random.set_bit_generator` gave it another one
    keys = (_numpy_random() if own is None else own.numpy).get_state(legacy=False)["state"]["key"].tobytes()
    return not any(keys in _numpy_words(value & 0xFFFFFFFF) for value in derived)


def _python_words(seed: int) -> list[tuple[int, ...]]:
    """The words of a new `random.Random(seed)`, and when up to 624 numbers have been drawn."""
    generator = random.Random(seed)  # noqa: S311 - to compare with
    words = [generator.getstate()[1][:-1]]
    generator.getrandbits(32)
    return [*words, generator.getstate()[1][:-1]]


def _numpy_words(seed: int) -> list[bytes]:
    """The words of a new `np.random.RandomState(seed)`, and when up to 624 numbers have been drawn."""
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


class _NumpyState:
    """The state of NumPy's global generator, saved as memory: in 3 us instead of 56.

    `numpy.random.get_state` and `set_state` convert 624 words one by one, which would take most of the time of a small
    batch with `num_workers=0`. The address of the words is part of NumPy's interface (`BitGenerator.ctypes`). Whether
    they lie there as expected is checked once; otherwise NumPy's functions are used.
    """

    def __init__(self) -> None:
        """Save the state, and leave it as it is."""
        self._generator: Any = _numpy_random().get_bit_generator()
        self._state: Any = None
        if not _memory_layout_known(self._generator.__class__):
            self._state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator is what datasets use
            return
        self._address: int = self._generator.ctypes.state_address
        self._memory = ctypes.string_at(self._address, _MT19937_SIZE)
        # A normal number that is left over from the last pair is not in that memory. If there is one, it comes next.
        normal = np.random.standard_normal()  # noqa: NPY002
        if ctypes.string_at(self._address, _MT19937_SIZE) == self._memory:
            position = int.from_bytes(self._memory[_MT19937_KEYS:], sys.byteorder)
            keys = np.frombuffer(self._memory, np.uint32, _MT19937_KEYS // 4)
            self._state = ("MT19937", keys, position, 1, normal)
        self.restore()

    def restore(self) -> None:
        """Restore the state."""
        if _numpy_random().get_bit_generator() is not self._generator:
            _numpy_random().set_bit_generator(self._generator)
        if self._state is not None:
            np.random.set_state(self._state)  # noqa: NPY002
        else:
            np.random.seed(0)  # noqa: NPY002 - drops a normal number that is left over
            ctypes.memmove(self._address, self._memory, _MT19937_SIZE)


_MT19937_KEYS = 4 * 624
"""Bytes of the words of a Mersenne twister; the position in them follows."""
_MT19937_SIZE = _MT19937_KEYS + 4


@functools.cache
def _memory_layout_known(generator: Any) -> bool:
    """Whether the state of a bit generator of NumPy lies in memory as that of a Mersenne twister in NumPy 1.17 to 2."""
    if generator is not np.random.MT19937:
        return False
    probe = np.random.MT19937(1)
    memory = ctypes.string_at(probe.ctypes.state_address, _MT19937_SIZE)
    state: Any = probe.state["state"]
    return bool(memory == state["key"].tobytes() + int(state["pos"]).to_bytes(4, sys.byteorder))


class PreservedRandomState:
    """The state of the generators of this thread; as a context manager, it restores the state on exit."""

    def __enter__(self) -> PreservedRandomState:
        """Save the state."""
        self.save()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Restore the state."""
        self.restore()

    def save(self) -> None:
        """Save the state."""
        own = thread_local.generators
        self._own = own
        self._python: Any = random if own is None else own.random
        self._torch = _torch_generator()
        self._python_state = self._python.getstate()
        self._numpy_state: Any = _NumpyState() if own is None else own.numpy.get_state(legacy=False)
        self._torch_state = None if self._torch is None else self._torch.get_state()

    def restore(self) -> None:
        """Restore the state."""
        self._python.setstate(self._python_state)
        if self._own is None:
            self._numpy_state.restore()
        else:
            self._own.numpy.set_state(self._numpy_state)
        if self._torch is not None:
            self._torch.set_state(self._torch_state)


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
        generator.set_state(torch.frombuffer(bytearray(base64.b64decode(state, validate=True)), dtype=torch.uint8))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"the state of a generator cannot be read: {error}") from error


def dump_globals(*, torch_only: bool) -> State:
    """Return the state of torch's default generator and, unless `torch_only`, of `random` and NumPy."""
    import torch

    state: State = {"torch": dump_generator(torch.default_generator)}
    if not torch_only:
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
    import torch

    if isinstance(state, int):
        seed_everything(state)
        return
    try:
        load_generator(torch.default_generator, state["torch"])
        if "random" in state:
            version, words, gauss = state["random"]
            random.setstate((version, tuple(_unpack(words).tolist()), gauss))
            keys, position, has_gauss, cached = state["numpy"]
            np.random.set_state(("MT19937", _unpack(keys), position, has_gauss, cached))  # noqa: NPY002
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the state of the random generators cannot be read: {error}") from error


def pack(array: Any) -> str:
    """Return the bytes of an array as base64 text."""
    return base64.b64encode(np.asarray(array).tobytes()).decode()


def _pack(words: Any) -> str:
    return pack(np.asarray(words, "<u4"))


def _unpack(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text, validate=True), "<u4").astype(np.uint32)
