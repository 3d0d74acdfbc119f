"""The key of unit 8, and wrong answers that the checks must reject."""


# %% lines
class Lines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        for path in self.paths:
            with path.open() as file:
                for line in file:
                    yield line.rstrip("\n")


# %% lines | mistake: the iterator is made once | hint: What was made in `__init__` and is used up
class Lines(IterableDataset):
    def __init__(self, paths):
        self.lines = (line for path in paths for line in path.read_text().splitlines())

    def __iter__(self):
        return self.lines


# %% lines | mistake: all files are read in advance | hint: Open a file when its turn comes
class Lines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        lines = [line for path in self.paths for line in path.read_text().splitlines()]
        return iter(lines)


# %% lines | mistake: the last character is removed, which is not always a newline | hint: has no newline
class Lines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        for path in self.paths:
            with path.open() as file:
                for line in file:
                    yield line[:-1]


# %% lines | mistake: blanks and tabs are removed, too | hint: Only the newline goes
class Lines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        for path in self.paths:
            with path.open() as file:
                for line in file:
                    yield line.strip()


# %% lines-explain
# Nobody knows how many samples a stream has before it was read to its end. And shuffling means to draw indices in a
# random order. A stream has no indices, and it decides the order itself.


# %% delivered
delivered = {"0 workers": 24, "1 worker": 24, "2 workers": 48, "3 workers": 72}
distinct = {"0 workers": 24, "1 worker": 24, "2 workers": 24, "3 workers": 24}
with_nbloader = "the same number"


# %% delivered | mistake: the loader splits the stream | hint: who calls `__iter__`, on which copy
delivered = {"0 workers": 24, "1 worker": 24, "2 workers": 24, "3 workers": 24}
distinct = {"0 workers": 24, "1 worker": 24, "2 workers": 24, "3 workers": 24}
with_nbloader = "the same number"


# %% delivered | mistake: copies are different samples | hint: how many different numbers
delivered = {"0 workers": 24, "1 worker": 24, "2 workers": 48, "3 workers": 72}
distinct = {"0 workers": 24, "1 worker": 24, "2 workers": 48, "3 workers": 72}
with_nbloader = "the same number"


# %% delivered | mistake: nbloader repairs it | hint: read the notice
delivered = {"0 workers": 24, "1 worker": 24, "2 workers": 48, "3 workers": 72}
distinct = {"0 workers": 24, "1 worker": 24, "2 workers": 24, "3 workers": 24}
with_nbloader = "each sample once"


# %% copies-explain
# With 2 workers, an epoch of the loader has each sample twice. So a training of 10 epochs sees the data 20 times, and a
# schedule of the learning rate that counts epochs is wrong. The accuracy of a validation stays the same if each sample
# comes equally often, but the validation takes longer.


# %% split
class Split(Lines):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return itertools.islice(super().__iter__(), first, None, step)


# %% split | mistake: no workers are forgotten | hint: Which lines are yours then
class Split(Lines):
    def __iter__(self):
        info = get_worker_info()
        return itertools.islice(super().__iter__(), info.id, None, info.num_workers)


# %% split | mistake: one file for each worker | hint: with 1 worker, 11 of 20 samples never come
class Split(Lines):
    def __iter__(self):
        info = get_worker_info()
        for path in self.paths[info.id : info.id + 1] if info else self.paths:
            yield from path.read_text().splitlines()


# %% split | mistake: every second line, whatever the number of workers | hint: never come
class Split(Lines):
    def __iter__(self):
        info = get_worker_info()
        for number, line in enumerate(super().__iter__()):
            if info is None or number % 2 == info.id:
                yield line


# %% split | mistake: each worker leaves out the first lines only | hint: come more than once
class Split(Lines):
    def __iter__(self):
        info = get_worker_info()
        return itertools.islice(super().__iter__(), info.id if info else 0, None)


# %% split | mistake: one worker reads everything | hint: of them made all batches
class Split(Lines):
    def __iter__(self):
        info = get_worker_info()
        if info is None or info.id == 0:
            yield from super().__iter__()


# %% split-explain
# Whole files for 1000 files: nothing is read twice, and there are enough files for all workers. Interleaved for the one
# file: each worker reads all of it, which is cheap, but decodes only its own samples. That is so only if decoding comes
# after the samples of others were left out. In the key, `Lines` runs before `islice`, so slow decoding in
# `Lines.__iter__` would be done by each worker for all samples.


# %% uneven
shards = {
    "the worker that ends first": 1,
    "batches": 6,
    "batches with fewer than 4 lines": 2,
    "lines lost with drop_last": 4,
    "lines lost with drop_last, without workers": 0,
}


# %% uneven | mistake: batches are filled from all workers | hint: Round up for each worker
shards = {
    "the worker that ends first": 1,
    "batches": 5,
    "batches with fewer than 4 lines": 0,
    "lines lost with drop_last": 0,
    "lines lost with drop_last, without workers": 0,
}


# %% uneven | mistake: only the very last batch is smaller | hint: each of the two workers has fewer
shards = shards | {"batches with fewer than 4 lines": 1}


# %% uneven | mistake: the first worker ends first | hint: Add up their lines
shards = shards | {"the worker that ends first": 0}


# %% uneven-explain
# A multiple of 8, and many more than 8, of about equal size. Then all workers end at nearly the same time. With
# `drop_last`, each worker loses at most one batch that lacks one sample. So the cost is at most `workers * (batch_size
# - 1)`. Here this is 6 lines, and 4 were lost.


# %% buffer
def shuffled(stream, size, rng):
    items = []
    for item in stream:
        items.append(item)
        if len(items) == size:
            yield items.pop(rng.randrange(size))
    rng.shuffle(items)
    yield from items


# %% buffer | mistake: blocks are shuffled | hint: You shuffle blocks
def shuffled(stream, size, rng):
    items = []
    for item in stream:
        items.append(item)
        if len(items) == size:
            rng.shuffle(items)
            yield from items
            items = []
    rng.shuffle(items)
    yield from items


# %% buffer | mistake: everything is read first | hint: longer than the memory
def shuffled(stream, size, rng):
    items = list(stream)
    rng.shuffle(items)
    return items


# %% buffer | mistake: the rest is forgotten | hint: never come
def shuffled(stream, size, rng):
    items = []
    for item in stream:
        items.append(item)
        if len(items) == size:
            yield items.pop(rng.randrange(size))


# %% buffer | mistake: the buffer holds one item more | hint: How many does your buffer hold
def shuffled(stream, size, rng):
    items = []
    for item in stream:
        items.append(item)
        if len(items) > size:
            yield items.pop(rng.randrange(len(items)))
    rng.shuffle(items)
    yield from items


# %% buffer | mistake: mostly the oldest item | hint: with the same chance
def shuffled(stream, size, rng):
    items = []
    for item in stream:
        items.append(item)
        if len(items) == size:
            yield items.pop(rng.randrange(size) if rng.random() < 0.05 else 0)
    rng.shuffle(items)
    yield from items


# %% buffer | mistake: the rest is not shuffled | hint: Shuffle the rest, too
def shuffled(stream, size, rng):
    items = []
    for item in stream:
        items.append(item)
        if len(items) == size:
            yield items.pop(rng.randrange(size))
    yield from items


# %% buffer | mistake: numbers of the global generator | hint: Draw from `rng` only
def shuffled(stream, size, rng):
    items = []
    for item in stream:
        items.append(item)
        if len(items) == size:
            yield items.pop(random.randrange(size))
    random.shuffle(items)
    yield from items


# %% moves
moves = {
    "positions earlier, at most": 3,
    "positions later, at most": 19,
    "positions, with a buffer of 1": 0,
}


# %% moves | mistake: as far back as forward | hint: an item may be unlucky each time
moves = moves | {"positions later, at most": 3}


# %% moves | mistake: the size of the buffer | hint: How many are before it
moves = moves | {"positions earlier, at most": 4}


# %% moves | mistake: a buffer of 1 shuffles | hint: among how many items
moves = moves | {"positions, with a buffer of 1": 1}


# %% buffer-explain
# It hardly helps: the buffer mixes only neighbors, so almost the whole first half of the epoch is cats, and the second
# half is dogs. With several files in a random order, files of cats and of dogs alternate. It is even better to read
# several files in turn. Then the buffer holds cats and dogs at the same time.


# %% shard
def shard(indices, rank, ranks):
    each = -(-len(indices) // ranks)
    padded = list(itertools.islice(itertools.cycle(indices), each * ranks))
    return padded[rank::ranks]


# %% shard | mistake: no padding | hint: Who waits in vain
def shard(indices, rank, ranks):
    return indices[rank::ranks]


# %% shard | mistake: the rest is left out | hint: Repeat indices
def shard(indices, rank, ranks):
    return indices[: len(indices) // ranks * ranks][rank::ranks]


# %% shard | mistake: padding with at most one round of the indices | hint: 2 indices on 5 ranks
def shard(indices, rank, ranks):
    padding = -len(indices) % ranks
    return (indices + indices[:padding])[rank::ranks]


# %% shard | mistake: everything for everyone | hint: would be enough
def shard(indices, rank, ranks):
    return indices


# %% shard-explain
# A training hardly notices a few samples that count a little more, and there are fewer of them than ranks. A validation
# counts them twice, so its accuracy is slightly wrong. `drop_last=True` is good for a training that shuffles: no sample
# is repeated, and each epoch leaves out others. A validation should neither repeat nor leave out samples: remove the
# repeated ones.


# %% epochs
orders = {
    "different orders without set_epoch": 1,
    "different samples without set_epoch": 6,
    "different orders with set_epoch": 3,
    "each sample once if only rank 0 calls set_epoch": False,
}


# %% epochs | mistake: the sampler counts epochs | hint: a seed and the number of the epoch
orders = orders | {"different orders without set_epoch": 3}


# %% epochs | mistake: rank 0 sees all samples in the end | hint: Which ones in the next epoch
orders = orders | {"different samples without set_epoch": 12}


# %% epochs | mistake: it is enough if one rank knows the epoch | hint: What if the ranks have different orders
orders = orders | {"each sample once if only rank 0 calls set_epoch": True}


# %% epochs-explain
# Each rank takes its part of one common order. With the same seed all ranks draw the same order, so that the parts have
# no sample in common and together have all of them. Each rank computes the order alone from `seed + epoch`, so no
# message must be sent, and nobody waits. With other seeds, some samples come twice and others never, as if only rank 0
# calls `set_epoch`.


# %% part
def part(rank, ranks, worker, workers):
    return rank * workers + worker, ranks * workers


# %% part | mistake: only the workers of a rank are split | hint: by worker 0 of rank 0 and by worker 0 of rank 1
def part(rank, ranks, worker, workers):
    return worker, workers


# %% part | mistake: two readers have the same number | hint: is read by
def part(rank, ranks, worker, workers):
    return rank + worker, ranks * workers


# %% part | mistake: the number of ranks instead of workers | hint: 4 ranks with 1 worker each
def part(rank, ranks, worker, workers):
    return rank * ranks + worker, ranks * workers


# %% part | mistake: the step is too large | hint: nobody reads
def part(rank, ranks, worker, workers):
    return rank * workers + worker, ranks * workers + 1


# %% part | mistake: one reader has everything | hint: many more samples than others
def part(rank, ranks, worker, workers):
    return (0, 1) if rank == worker == 0 else (1000, 1)


# %% part-explain
# The first `61 % (ranks * workers)` parts have one sample more. With 2 ranks and 2 workers this is one part, that of
# worker 0 of rank 0. So rank 0 has 31 samples and rank 1 has 30. The ranks can tell each other before each step whether
# they have another batch, with a collective operation. All stop when one of them has none.


# %% remains
rest = {
    "the first batch of the new loader": 5,
    "its batches until the epoch ends": 5,
    "samples that come twice": 0,
    "samples that never come": 0,
    "batches in its next epoch": 10,
    "samples that come twice with a plain loader": 20,
}


# %% remains | mistake: what was made in advance is gone | hint: was never delivered
rest = rest | {
    "the first batch of the new loader": 9,
    "its batches until the epoch ends": 1,
}


# %% remains | mistake: later epochs are shorter, too | hint: the next epoch is a whole one
rest = rest | {"batches in its next epoch": 5}


# %% remains | mistake: a plain loader goes on, too | hint: it knows nothing of the first half
rest = rest | {"samples that come twice with a plain loader": 0}


# %% remains-explain
# The loop has not seen these batches, so the model has not learned from them. If they counted, they would be lost. The
# new loader makes them again. Save the weights of the model, the optimizer, the schedule of the learning rate, and the
# random generators of the training at the same step.


# %% resume
def first_part(loader, count):
    batches = list(itertools.islice(loader, count))
    return batches, json.dumps(loader.state_dict())


def second_part(loader, saved):
    loader.load_state_dict(json.loads(saved))
    return list(loader)


# %% resume | mistake: the loop takes one batch more than it processes | hint: that it did not process
def first_part(loader, count):
    batches = []
    for number, batch in enumerate(loader):
        if number == count:
            break
        batches.append(batch)
    return batches, json.dumps(loader.state_dict())


def second_part(loader, saved):
    loader.load_state_dict(json.loads(saved))
    return list(loader)


# %% resume | mistake: the state comes too late | hint: come again
def first_part(loader, count):
    batches = list(itertools.islice(loader, count))
    return batches, json.dumps(loader.state_dict())


def second_part(loader, saved):
    batches = iter(loader)
    loader.load_state_dict(json.loads(saved))
    return list(batches)


# %% resume | mistake: the state of the beginning is saved | hint: come again
def first_part(loader, count):
    saved = json.dumps(loader.state_dict())
    return list(itertools.islice(loader, count)), saved


def second_part(loader, saved):
    loader.load_state_dict(json.loads(saved))
    return list(loader)


# %% resume | mistake: a dict is saved | hint: What does json.dumps return
def first_part(loader, count):
    batches = list(itertools.islice(loader, count))
    return batches, loader.state_dict()


def second_part(loader, saved):
    loader.load_state_dict(saved)
    return list(loader)


# %% resume | mistake: the batches that are left are sorted | hint: in another order
def first_part(loader, count):
    batches = list(itertools.islice(loader, count))
    return batches, json.dumps(loader.state_dict())


def second_part(loader, saved):
    loader.load_state_dict(json.loads(saved))
    return sorted(loader)


# %% resume-explain
# The state says how many batches of each of the two parts were delivered. The rest of the epoch keeps two parts: the
# one worker iterates over both, and gets the number of the part and `num_workers=2` from `get_worker_info()`. A stream
# cannot jump, so the worker reads the delivered batches of each part again and drops them. That is not needed for a
# stream that saves its own state.
