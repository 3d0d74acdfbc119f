"""Notices faults of a dataset that give wrong data without an error, and warns of each once."""

from __future__ import annotations

import collections
from collections.abc import Hashable

from nbloader._util.user_warning import warn
from nbloader.events.silent_faults import FaultSign, GeneratorDrawn, ShardBegun

_INSTEAD = {
    "RandomState": "numpy.random.RandomState",
    "Random": "random.Random",
    "Generator": "numpy.random.default_rng",
}
"""How a generator of another seed is made, by the name of its class."""


class SilentFaults:
    """Compares the signs that the workers of a loader report.

    Signs are added by the thread that receives messages. Warnings are issued by the consumer, in its cell.
    """

    def __init__(self) -> None:
        self._workers: dict[Hashable, set[int]] = collections.defaultdict(set)
        """The workers that have reported the same sign."""
        self._said: set[str] = set()
        self.texts: collections.deque[str] = collections.deque()
        """The warnings that were not issued yet."""

    def add(self, sign: FaultSign) -> None:
        """Add what a worker has reported."""
        if isinstance(sign, GeneratorDrawn):
            self._add(sign[1:], sign.worker, _equal_numbers(sign))
        elif not sign.asked and len(set(sign.samples)) > 1:
            self._add(sign[1:], sign.shard, _equal_samples(sign))

    def _add(self, seen: Hashable, worker: int, text: str) -> None:
        workers = self._workers[seen]
        workers.add(worker)
        if len(workers) > 1 and text not in self._said:
            self._said.add(text)
            self.texts.append(text)

    def warn(self) -> None:
        """Issue the warnings that are due, on the thread of the consumer."""
        while self.texts:
            warn(self.texts.popleft())


def _equal_numbers(sign: GeneratorDrawn) -> str:
    name = sign.path.rpartition(".")[2]
    made = _INSTEAD.get(sign.kind, sign.kind)
    return (
        f"The random generator `{sign.path}` of the dataset ({sign.dataset}) gives the same numbers in all workers, "
        "because each has a copy of it in the same state. Draw from random, numpy.random or torch instead, which are "
        "seeded for each batch. Or give each worker its own generator, in worker_init_fn: "
        f"info = torch.utils.data.get_worker_info(); info.dataset.{name} = {made}(info.seed)"
    )


def _equal_samples(sign: ShardBegun) -> str:
    return (
        f"The workers yield the same samples: each iterates over the whole dataset ({sign.dataset}), which does not "
        "use get_worker_info(), so each sample is delivered once for each worker. Let __iter__ yield a part of the "
        "samples: info = torch.utils.data.get_worker_info(), and then "
        "itertools.islice(samples, info.id, None, info.num_workers)"
    )
