"""DataPipes of torch, compared with torch's own loader over the same pipes."""

from __future__ import annotations

import itertools

import pytest
import torch
from datasets import Numbers, flat
from same import assert_same
from torch.utils import data as theirs
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from nbloader import DataLoader
from nbloader.sampling.datapipes import Prepare

WORKERS = pytest.mark.parametrize("num_workers", [0, 1, 2])


def shuffled(n=40):
    """A pipe with a shuffler, a sharding filter and a mapper."""
    return IterableWrapper(range(n)).shuffle(buffer_size=10).sharding_filter().map(double)


def double(x):
    return 2 * x


@WORKERS
@pytest.mark.parametrize("shuffle", [None, True, False])
def test_two_epochs_of_a_pipe_are_in_the_same_order_as_in_torch(num_workers, shuffle):
    epochs = []
    for cls in (theirs.DataLoader, DataLoader):
        torch.manual_seed(3)
        loader = cls(shuffled(), 4, shuffle=shuffle, num_workers=num_workers)
        epochs.append([list(loader), list(loader)])
    loader.close()
    assert_same(epochs[1], epochs[0])
    assert sorted(flat(epochs[1][0])) == list(range(0, 80, 2))
    assert (flat(epochs[1][0]) != flat(epochs[1][1])) == (shuffle is not False)


def test_the_generator_determines_the_order():
    with (
        DataLoader(shuffled(), 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(1)) as one,
        DataLoader(shuffled(), 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(1)) as other,
    ):
        assert flat(one) == flat(other)


def test_a_shuffler_is_added_to_a_pipe_without_one():
    with pytest.warns(UserWarning, match="does not contain a `Shuffler`"):
        loader = DataLoader(IterableWrapper(range(30)), 30, shuffle=True)
    with loader:
        (batch,) = loader
    assert sorted(batch.tolist()) == list(range(30)) != batch.tolist()


def test_without_a_sharding_filter_each_worker_yields_everything_as_in_torch():
    with DataLoader(IterableWrapper(range(4)), 2, num_workers=2) as loader:
        assert sorted(flat(loader)) == sorted(2 * list(range(4)))


def test_a_restarted_worker_continues_in_the_same_order():
    with DataLoader(
        shuffled(200), 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(1)
    ) as loader:
        expected = flat(loader)
    with DataLoader(
        shuffled(200), 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(1)
    ) as loader:
        seen = []
        for number, batch in enumerate(loader):
            seen += batch.tolist()
            if number == 10:
                loader.restart_workers()
        assert seen == expected
        assert loader.stats().restarts == 2


def test_a_pipe_is_sharded_over_the_workers_of_all_distributed_processes():
    parts = []
    for rank in range(2):
        prepare = Prepare(2, rank)
        for shard in range(2):
            pipe = shuffled(20)
            prepare(pipe, shard, 2, seed=5)
            parts.append(list(pipe))
    assert sorted(itertools.chain(*parts)) == list(range(0, 40, 2))
    assert all(len(part) == 5 for part in parts)


def test_a_map_pipe_is_a_map_dataset(how):
    pipe = SequenceWrapper(range(10)).map(double)
    with DataLoader(pipe, 4, shuffle=True, **how) as loader:
        assert sorted(flat(loader)) == list(range(0, 20, 2))


def test_from_torch_unwraps_the_pipe():
    old = theirs.DataLoader(IterableWrapper(range(8)).sharding_filter().map(double), 2, num_workers=2)
    with DataLoader.from_torch(old) as loader:
        assert sorted(flat(loader)) == list(range(0, 16, 2))


def test_threads_are_refused_for_a_pipe():
    with pytest.raises(ValueError, match="workers='thread' and a DataPipe are mutually exclusive"):
        DataLoader(shuffled(), num_workers=2, workers="thread")
    DataLoader(Numbers(2), num_workers=2, workers="thread").close()
