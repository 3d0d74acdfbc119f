"""Decides which sample is read next: a state machine without I/O, threads or a clock.

    want(view, requests) what a view has on screen, the middle first; replaces what the view wanted before
    scan(requests)       what is read while nothing else is wanted; added to the scan
    ask(request)         one sample in full, or under another seed: before anything that is only on screen
    take() -> Request    what to read next
    finish(request)      it was read, it failed, or it was given up

Requests for samples that were scrolled past are dropped, because they are replaced. A request that is being read is not
read twice: a second view that wants the sample gets it together with the first one.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Container, Iterable

from nbloader.explorer.reader import ReadSample, Request


class RequestQueue:
    """The requests that are waiting and those that are being read."""

    def __init__(self) -> None:
        self._asked: OrderedDict[Request, None] = OrderedDict()
        self._wanted: dict[str, list[Request]] = {}
        self._scanned: OrderedDict[Request, None] = OrderedDict()
        self.reading: set[Request] = set()
        """Requests that were taken and have not finished."""

    def want(self, view: str, indices: Iterable[int], have: Container[Request]) -> None:
        """Replace what a view has on screen.

        Args:
            view: The view.
            indices: Dataset indices, the most urgent first.
            have: Requests that were already read.
        """
        self._wanted[view] = [request for request in map(Request, indices) if request not in have]

    def scan(self, requests: Iterable[Request]) -> None:
        """Read these requests, too, while nothing else is wanted."""
        self._scanned.update((request, None) for request in requests if request not in self.reading)

    def stop_scan(self) -> None:
        """Drop the requests of the scan."""
        self._scanned.clear()

    def ask(self, request: Request) -> None:
        """Read this request next, before those that were passed to `ask` earlier."""
        if request not in self.reading:
            self._asked[request] = None
            self._asked.move_to_end(request, last=False)

    def forget(self, view: str) -> None:
        """Forget a view that was closed."""
        self._wanted.pop(view, None)

    def clear(self) -> None:
        """Drop all waiting requests."""
        self._asked.clear()
        self._wanted.clear()
        self._scanned.clear()

    def take(self) -> Request | None:
        """Take the next request; None if nothing is waiting."""
        while self._asked:
            request, _ = self._asked.popitem(last=False)
            if request not in self.reading:
                self.reading.add(request)
                return request
        for view in list(self._wanted):
            requests = self._wanted.pop(view)
            while requests:
                request = requests.pop(0)
                if request not in self.reading:
                    self.reading.add(request)
                    self._wanted[view] = requests  # behind the other views: they are served in turn
                    return request
        while self._scanned:
            request, _ = self._scanned.popitem(last=False)
            if request not in self.reading:
                self.reading.add(request)
                return request
        return None

    def finish(self, request: Request) -> None:
        """Mark a request as finished: it is no longer waiting or being read."""
        self.reading.discard(request)
        self._asked.pop(request, None)
        self._scanned.pop(request, None)
        for requests in self._wanted.values():
            if request in requests:
                requests.remove(request)

    @property
    def waiting(self) -> bool:
        """Whether there is a request that is not being read yet."""
        pending = itertools.chain(self._asked, *self._wanted.values(), self._scanned)
        return any(request not in self.reading for request in pending)


class SampleCache:
    """An LRU cache of the samples that were read, by request.

    Args:
        limit: Maximum size in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._samples: OrderedDict[Request, ReadSample] = OrderedDict()
        self._limit = limit
        self._nbytes = 0

    def get(self, request: Request) -> ReadSample | None:
        """Return a cached sample, which counts as a use; None if it is not cached."""
        sample = self._samples.get(request)
        if sample is not None:
            self._samples.move_to_end(request)
        return sample

    def put(self, request: Request, sample: ReadSample) -> None:
        """Cache a sample that was read."""
        self.drop(request)
        self._samples[request] = sample
        self._nbytes += sample.nbytes
        while self._nbytes > self._limit and len(self._samples) > 1:
            self.drop(next(iter(self._samples)))

    def drop_sample(self, index: int) -> None:
        """Drop everything that was read of a sample."""
        for request in [request for request in self._samples if request.index == index]:
            self.drop(request)

    def drop(self, request: Request) -> None:
        """Drop a request's sample, if it is cached."""
        sample = self._samples.pop(request, None)
        if sample is not None:
            self._nbytes -= sample.nbytes

    def clear(self) -> None:
        """Drop everything."""
        self._samples.clear()
        self._nbytes = 0

    def __contains__(self, request: object) -> bool:
        """Whether a request's sample is cached."""
        return request in self._samples
