"""The state of random generators as JSON, so that what was drawn can be drawn again in another process."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np

from nbloader.workers import fetcher as f

State = dict[str, Any]


def dump_generator(generator: Any) -> str:
    """The state of a `torch.Generator`, about 7 kB."""
    return pack(generator.get_state().numpy())


def load_generator(generator: Any, state: str) -> None:
    """Put a `torch.Generator` into a state.

    Raises:
        ValueError: It is none.
    """
    import torch

    try:
        generator.set_state(torch.frombuffer(bytearray(base64.b64decode(state, validate=True)), dtype=torch.uint8))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"the state of a generator cannot be read: {error}") from error


def dump_globals(*, torch_only: bool) -> State:
    """The states of torch's default generator and, where asked for, of `random` and NumPy."""
    import torch

    state: State = {"torch": dump_generator(torch.default_generator)}
    if not torch_only:
        version, words, gauss = random.getstate()
        state["random"] = [version, _pack(words), gauss]
        _name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
        state["numpy"] = [_pack(keys), int(position), int(has_gauss), float(cached)]
    return state


def load_globals(state: State | int) -> None:
    """Put the global generators into a state, or seed them.

    Raises:
        ValueError: It is no such state.
    """
    import torch

    if isinstance(state, int):
        f.seed_everything(state)
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
    """The bytes of an array as text."""
    return base64.b64encode(np.asarray(array).tobytes()).decode()


def _pack(words: Any) -> str:
    return pack(np.asarray(words, "<u4"))


def _unpack(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text, validate=True), "<u4").astype(np.uint32)
