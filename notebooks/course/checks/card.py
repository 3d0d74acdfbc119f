"""Stands in for a GPU where there is none: copies to it take time, as over a link. Unit 9 gives it to a loader.

nbloader takes an object with these methods for `device=`, see `nbloader.device.accelerator`. A batch "on the card" is a
copy of its tensors in the memory of the host.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
from torch.utils import _pytree as pytree

from nbloader.device.accelerator import CopyTimes


class Card:
    """A card with one copy engine, which copies from the shared memory of the workers.

    Args:
        mb_per_second: Throughput of the link, in 1e6 bytes per second.
    """

    name = "card:0"
    pins = True
    out_of_memory = MemoryError

    def __init__(self, mb_per_second: float) -> None:
        self.mb_per_second = mb_per_second
        self.free_at = 0
        """When the link has copied what was started, in perf_counter ns."""
        self.nbytes = 0
        """Bytes that were copied."""
        self.batches = self.most_batches = 0
        """Batches in the memory of the card: now, and at most."""

    def can_upload_ahead(self, _batch: Any) -> bool:
        """Always True."""
        return True

    def copy(self, batch: Any, _mapping: Any, *, ahead: bool) -> CardCopy:
        """Create the copy of a batch without starting it. It is the same copy if the batch is due."""
        return CardCopy(self, batch)

    def memory(self) -> str:
        """Return a phrase for errors."""
        return f"{self.batches} batches are on it"

    def gauge(self) -> None:
        """Nothing is known of its memory."""

    def close(self) -> None:
        """Nothing is to be released."""

    def _freed(self) -> None:
        self.batches -= 1


class CardCopy:
    """The copy of one batch: the bytes move at once, and are not handed out before the link would have copied them."""

    memory = "registered"

    def __init__(self, card: Card, batch: Any) -> None:
        self._card, self._batch = card, batch
        self._begin = self._end = self._needed = self.nbytes = self.pinned = 0

    def start(self) -> None:
        """Start the copy."""
        card = self._card
        self._batch = pytree.tree_map_only(torch.Tensor, torch.clone, self._batch)
        tensors = [
            leaf
            for leaf in pytree.tree_leaves(self._batch)
            if isinstance(leaf, torch.Tensor)
        ]
        self.nbytes = sum(tensor.nbytes for tensor in tensors)
        self.pinned = time.perf_counter_ns()
        self._begin = max(self.pinned, card.free_at)
        self._end = card.free_at = self._begin + round(
            1e3 * self.nbytes / card.mb_per_second
        )
        card.nbytes += self.nbytes
        card.batches += 1
        card.most_batches = max(card.most_batches, card.batches)
        weakref.finalize(tensors[0], card._freed)

    def done(self) -> bool:
        """Whether the copy is done."""
        return time.perf_counter_ns() >= self._end

    def begun(self) -> bool:
        """The steps are done on the host, so none of them delays the copy."""
        return True

    def wait_until_begun(self) -> None:
        """See `begun`."""

    def wait(self) -> None:
        """Wait until the copy is done."""
        time.sleep(max(0, self._end - time.perf_counter_ns()) / 1e9)

    def deliver(self) -> Any:
        """Return the batch on the card. The loop's next step waits for the copy, and so does the host here."""
        self._needed = time.perf_counter_ns()
        self.wait()
        batch, self._batch = self._batch, None
        return batch

    def times_known(self) -> bool:
        """Whether the batch was delivered."""
        return self._needed > 0

    def times(self) -> CopyTimes:
        """When the link copied the batch, and when the loop needed it."""
        return CopyTimes(self._begin, self._end, self._needed)
