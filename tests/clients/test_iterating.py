"""Idioms of training loops."""

from __future__ import annotations

import collections
import gc
import io
import itertools
import random
import threading
import urllib.error
import weakref

import numpy as np
import pytest
import torch
from idioms import Squares, plain, same_as_torch

from nbloader import DataLoader

THREAD = {"num_workers": 1, "workers": "thread"}


def test_two_iterators_of_one_loader_are_read_in_turn():
    def idiom(loader_class, **how):
        loader = loader_class(Squares(), 3, **how)
        return list(zip(loader, loader, strict=True))

    same_as_torch(idiom, {}, THREAD)


def test_a_loader_is_cycled():
    def idiom(loader_class, **how):
        return list(itertools.islice(itertools.cycle(loader_class(Squares(), 3, **how)), 8))

    same_as_torch(idiom, {}, THREAD)


def test_an_exhausted_iterator_is_replaced_in_the_middle_of_training():
    """`try: batch = next(it)`, `except StopIteration: it = iter(loader)`."""

    def idiom(loader_class, **how):
        loader = loader_class(Squares(5), 2, shuffle=True, **how)
        iterator, got = iter(loader), []
        for _ in range(7):
            try:
                batch = next(iterator)
            except StopIteration:
                iterator = iter(loader)
                batch = next(iterator)
            got.append(batch)
        return got

    same_as_torch(idiom, {}, THREAD)


def test_an_epoch_is_left_early_and_the_next_one_begins_anew():
    """`limit_train_batches`: with the shuffled order of a generator, an epoch that is left counts as drawn."""

    def idiom(loader_class, **how):
        loader = loader_class(Squares(500), 2, shuffle=True, generator=torch.Generator().manual_seed(1), **how)
        got = []
        for _ in range(3):
            for i, batch in enumerate(loader):
                got.append(batch)
                if i == 1:
                    break
        return got

    same_as_torch(idiom, {}, THREAD)


def test_a_sampler_that_is_a_generator_is_closed_when_the_loop_is_left():
    """Its `finally` clause may release a lock or close a file."""

    def idiom(loader_class, **how):
        closed = []

        class Sampler:
            def __iter__(self):
                try:
                    yield from range(8)
                finally:
                    closed.append(True)

        seen = []
        loader = loader_class(Squares(), sampler=Sampler(), **how)
        for _ in range(2):
            for _batch in loader:
                break
            gc.collect()
            seen.append(len(closed))
        return seen

    assert same_as_torch(idiom, {}, THREAD, {"num_workers": 1}) == [1, 2]


def test_an_iterator_is_deleted_in_mid_epoch():
    with DataLoader(Squares(), 2, **THREAD) as loader:
        iterator = iter(loader)
        next(iterator)
        gone = weakref.ref(iterator)
        del iterator
        gc.collect()
        assert gone() is None
        assert plain(list(loader)) == [[0, 1], [4, 9], [16, 25], [36, 49]]


class DownloadError(Exception):
    """Cannot be made from its message alone, as `requests`' and `botocore`'s exceptions."""

    def __init__(self, url, *, code):
        super().__init__(f"{url}: {code}")
        self.url, self.code = url, code


class Remote(Squares):
    def __getitem__(self, i):
        if i == 5:
            raise DownloadError("http://example", code=503)
        if i == 6:
            raise KeyboardInterrupt
        return i


def test_an_exception_whose_constructor_takes_other_arguments_arrives():
    """In torch it arrives as a RuntimeError; here as itself where it can be pickled."""
    with DataLoader(Remote(6), 2, num_workers=1) as loader:
        iterator = iter(loader)
        assert plain([next(iterator), next(iterator)]) == [[0, 1], [2, 3]]
        with pytest.raises(Exception, match="http://example: 503"):
            next(iterator)


class CorruptFileError(Exception):
    """It holds what cannot be sent to another process."""

    def __init__(self, path):
        super().__init__(path)
        self.path = path
        self.lock = threading.Lock()


class DecodingError(CorruptFileError):
    """Its constructor takes other arguments, and its text is made of attributes."""

    def __init__(self, *, path, frame):
        super().__init__(path)
        self.frame = frame

    def __str__(self):
        return f"{self.path}, frame {self.frame}"


class OpenFileError(Exception):
    """It has an open file among its arguments."""

    def __init__(self, path, file=None):
        super().__init__(path, file)

    def __str__(self):
        return str(self.args[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: CorruptFileError("a.jpg"),
        lambda: DecodingError(path="a.mp4", frame=3),
        lambda: OpenFileError("a.zip", threading.Lock()),
        lambda: urllib.error.HTTPError("http://example", 503, "busy", {}, io.BytesIO()),
    ],
    ids=["a lock", "a lock and other arguments", "a lock among the arguments", "a response"],
)
def test_an_exception_with_attributes_that_cannot_be_pickled_is_caught_by_its_type(make):
    class Broken(Squares):
        def __getitem__(self, i):
            raise make()

    def idiom(loader_class, **how):
        try:
            next(iter(loader_class(Broken(), **how)))
        except (CorruptFileError, OpenFileError, urllib.error.HTTPError) as error:
            return type(error).__name__, str(error), getattr(error, "path", None), getattr(error, "code", None)

    assert same_as_torch(idiom, {}, THREAD, {"num_workers": 1}) is not None


def test_an_interrupt_in_the_dataset_ends_the_loop_and_the_loader_goes_on():
    def idiom(loader_class):
        loader = loader_class(Remote(8), sampler=[1, 6, 2], batch_size=1)
        iterator = iter(loader)
        got = next(iterator)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        return got, next(iter(loader))

    same_as_torch(idiom)


def test_batches_are_moved_by_a_generator_around_the_loader():
    """Lightning's and fastai's wrappers: attributes of the loader are delegated, `__iter__` is a generator."""

    def idiom(loader_class, **how):
        class Moved:
            def __init__(self, loader):
                self._loader = loader

            def __getattr__(self, name):
                return getattr(self._loader, name)

            def __len__(self):
                return len(self._loader)

            def __iter__(self):
                for batch in iter(self._loader):
                    yield batch.to(torch.float64)

        loader = Moved(loader_class(Squares(), 3, **how))
        return list(enumerate(loader)), len(loader), loader.batch_size, sum(len(batch) for batch in loader)

    same_as_torch(idiom, {}, THREAD)


Pair = collections.namedtuple("Pair", "value name")  # noqa: PYI024 - as in programs


class Named(Squares):
    def __getitem__(self, i):
        return {"pair": Pair(torch.full((2,), i), f"n{i}"), "array": np.arange(2) + i, "list": [i, float(i)]}


def test_nested_samples_and_default_convert():
    def idiom(loader_class, **how):
        batched = list(loader_class(Named(3), 2, **how))
        single = list(loader_class(Named(3), batch_size=None, **how))
        return batched, single, [type(b["pair"]).__name__ for b in batched + single], type(single[0]["array"]).__name__

    same_as_torch(idiom, {}, THREAD)


def test_global_generators_of_the_loop_are_not_disturbed():
    """A seeded loop draws the same numbers whether or not it has workers."""

    def idiom(loader_class, **how):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        loader = loader_class(Squares(4), 2, shuffle=True, **how)
        return [(random.random(), np.random.rand(), torch.rand(1).item()) for _batch in loader]

    same_as_torch(idiom, {}, {"num_workers": 1})
