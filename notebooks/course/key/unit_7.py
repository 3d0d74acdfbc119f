"""The key of unit 7, and wrong answers that the checks must reject."""


# %% state
def same_state(a, b):
    return a.bit_generator.state == b.bit_generator.state


# %% state | mistake: compares the objects | hint: they draw the same numbers, and you return False
def same_state(a, b):
    return a == b


# %% state | mistake: draws from the generators | hint: has changed the generators
def same_state(a, b):
    return a.random() == b.random()


# %% state | mistake: compares the seeds | hint: one of them has drawn a number
def same_state(a, b):
    return a.bit_generator.seed_seq.entropy == b.bit_generator.seed_seq.entropy


# %% changes
changes = {
    "random.shuffle([1, 2, 3])": "random",
    "np.random.permutation(3)": "numpy",
    "np.random.default_rng(0).random()": "none",
    "torch.rand(2, generator=torch.Generator())": "none",
    "torch.manual_seed(0)": "torch",
    "list(DataLoader([1, 2, 3]))": "torch",
}


# %% changes | mistake: a generator of your own counts as the global one | hint: who else uses it
changes = changes | {"np.random.default_rng(0).random()": "numpy"}


# %% changes | mistake: without shuffling a loader draws nothing | hint: even if it does not shuffle
changes = changes | {"list(DataLoader([1, 2, 3]))": "none"}


# %% changes | mistake: the given generator is overlooked | hint: Is it the global one
changes = changes | {"torch.rand(2, generator=torch.Generator())": "torch"}


# %% changes-explain
# It draws a base seed for the epoch from torch's global generator, even if it does not shuffle. The seeds of the
# workers or batches are computed from it.


# %% forked
different = {
    "np.random.random()": 5,
    "torch.rand(1)": 5,
    "rng.random()": 5,
    "np.random.default_rng().random()": 10,
    "random.random()": 10,
}


# %% forked | mistake: random means different | hint: a copy of the state
different = dict.fromkeys(different, 10)


# %% forked | mistake: all generators are copied, even new ones | hint: made after the fork
different = dict.fromkeys(different, 5)


# %% forked | mistake: Python's own module is like the others | hint: for its own module
different = different | {"random.random()": 5}


# %% forked-explain
# `rng` was made before the fork, so both processes have a copy in the same state, and both draw the same 5 numbers.
# `np.random.default_rng()` makes a new generator at each call, inside the process. It is seeded with fresh random bytes
# of the operating system, so all 10 numbers differ.


# %% held
distinct = {
    "no workers": 96,
    "1 worker": 48,
    "2 workers": 24,
    "3 workers": 16,
    "2 workers that stay": 48,
}


# %% held | mistake: epochs differ | hint: the worker of the second epoch is a new process
distinct = {
    "no workers": 96,
    "1 worker": 96,
    "2 workers": 48,
    "3 workers": 32,
    "2 workers that stay": 48,
}


# %% held | mistake: torch seeds it | hint: a new process
distinct = dict.fromkeys(distinct, 96)


# %% held | mistake: workers that stay begin again, too | hint: the same two copies go on
distinct = distinct | {"2 workers that stay": 24}


# %% held-explain
# Without workers there is only one generator, in the notebook's process, and it draws on and on: all 96 numbers differ.
# The bug needs copies of the generator in the same state. These are made only when worker processes start.


# %% workers
equal = {
    "torch, 1 or 2 workers": 1,
    "torch, 2 or 3 workers": 2,
    "nbloader, 1 or 2 workers": 12,
    "nbloader, 2 or 3 workers": 12,
}


# %% workers | mistake: with another worker nothing is the same | hint: after as many batches
equal = equal | {"torch, 1 or 2 workers": 0, "torch, 2 or 3 workers": 0}


# %% workers | mistake: the seed makes everything the same | hint: the worker with the same number makes it
equal = dict.fromkeys(equal, 12)


# %% workers | mistake: nbloader seeds workers, too | hint: Is one of these another one
equal = equal | {"nbloader, 1 or 2 workers": 1, "nbloader, 2 or 3 workers": 2}


# %% workers-explain
# Seeds for each batch, as in nbloader: a batch draws the same numbers, whoever makes it. All 12 batches stayed the same
# with another number of workers. With seeds for each worker, more workers change almost all batches, so a result cannot
# be repeated on the larger machine.


# %% seed
def seed_of(base_seed, epoch, batch):
    return batch, epoch, base_seed


# %% seed | also right: one number
def seed_of(base_seed, epoch, batch):
    return (base_seed * 1000 + epoch) * 10_000_000 + batch


# %% seed | mistake: the long number first | hint: needs more than 32 bits
def seed_of(base_seed, epoch, batch):
    return base_seed, epoch, batch


# %% seed | mistake: the long number first, and one number of the two others | hint: needs more than 32 bits
def seed_of(base_seed, epoch, batch):
    return base_seed, epoch * 10_000_000 + batch


# %% seed | mistake: a long number that is made of two, first | hint: needs more than 32 bits
def seed_of(base_seed, epoch, batch):
    return base_seed * 1000 + epoch, batch


# %% seed | mistake: the number that is made of the two others is too long as well | hint: needs more than 32 bits
def seed_of(base_seed, epoch, batch):
    return epoch * 10_000_000 + batch, base_seed


# %% seed | mistake: there is room for a hundred epochs only | hint: give the same seed
def seed_of(base_seed, epoch, batch):
    return (base_seed * 100 + epoch) * 10_000_000 + batch


# %% seed | mistake: the sum | hint: give the same seed
def seed_of(base_seed, epoch, batch):
    return base_seed + epoch + batch


# %% seed | mistake: there is room for a thousand batches only | hint: give the same seed
def seed_of(base_seed, epoch, batch):
    return (base_seed * 1000 + epoch) * 1000 + batch


# %% seed | mistake: the epoch is forgotten | hint: give the same seed
def seed_of(base_seed, epoch, batch):
    return base_seed, batch


# %% seed | mistake: drawn from the global generator | hint: the seeds differ
def seed_of(base_seed, epoch, batch):
    return random.getrandbits(64)


# %% repair
class Augmented:
    def __init__(self, length, seed):
        self.length, self.seed, self.epoch = length, seed, 0

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return np.random.default_rng((i, self.epoch, self.seed)).random()


# %% repair | mistake: the dataset holds a generator | hint: Each worker has a copy of something that draws
class Augmented:
    def __init__(self, length, seed):
        self.length, self.seed, self.epoch = length, seed, 0
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.rng.random()


# %% repair | mistake: a new generator with the same seed for each sample | hint: tells the generators of two samples
class Augmented:
    def __init__(self, length, seed):
        self.length, self.seed, self.epoch = length, seed, 0

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return np.random.default_rng(self.seed).random()


# %% repair | mistake: a generator without a seed | hint: What seeds your generator
class Augmented:
    def __init__(self, length, seed):
        self.length, self.seed, self.epoch = length, seed, 0

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return np.random.default_rng().random()


# %% repair | mistake: the same in each epoch | hint: 48 numbers of epoch 0 come again in epoch 1
class Augmented:
    def __init__(self, length, seed):
        self.length, self.seed, self.epoch = length, seed, 0

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return np.random.default_rng((i, self.seed)).random()


# %% repair | mistake: the sum of seed, epoch and index | hint: 47 numbers of epoch 0 come again in epoch 1
class Augmented:
    def __init__(self, length, seed):
        self.length, self.seed, self.epoch = length, seed, 0

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return np.random.default_rng(self.seed + self.epoch + i).random()


# %% repair | mistake: a generator for each worker | hint: they depend on the worker
class Augmented:
    def __init__(self, length, seed):
        self.length, self.seed, self.epoch, self.drawn = length, seed, 0, 0

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        info = nbloader.get_worker_info()
        self.drawn += 1
        return np.random.default_rng(
            (self.drawn, info.id if info else 0, self.epoch, self.seed)
        ).random()


# %% repair | mistake: the seed is forgotten | hint: What became of the seed
class Augmented:
    def __init__(self, length, seed):
        self.length, self.seed, self.epoch = length, seed, 0

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return np.random.default_rng((i, self.epoch)).random()


# %% repair-explain
# The second way, a generator for each sample. Its seed depends only on the run, the epoch and the index, so it does not
# matter which worker makes the sample. torch's loader seeds the global generators once for each worker, so with the
# first way, samples change with the number of workers.


# %% programs-answer
same_tomorrow = {
    "a": "nothing",
    "b": "everything",
    "c": "only the indices",
    "d": "everything",
    "e": "not the order",
}


# %% programs-answer | mistake: any seed will do | hint: determines the shuffled order
same_tomorrow = same_tomorrow | {"a": "everything"}


# %% programs-answer | mistake: the number of workers matters | hint: Does the number of workers matter
same_tomorrow = same_tomorrow | {"b": "only the indices"}


# %% programs-answer | mistake: only the order comes from the generator | hint: and for the base seed
same_tomorrow = same_tomorrow | {"d": "only the indices"}


# %% programs-answer | mistake: late batches have other numbers | hint: whenever it is made
same_tomorrow = same_tomorrow | {"e": "nothing"}


# %% programs-explain
# a: call `torch.manual_seed(7)`, since the loader draws the order and the base seed from torch's generator. c: draw
# from a global generator, which the loader seeds, or make a generator from a seed, the epoch and the index. e: leave
# out `in_order=False`. Its batches are the same already, and then their order is, too.


# %% replay-explain
# The dataset holds a generator, and its state depends on everything that this worker has drawn before. The loader
# cannot set this state with the seed of the batch. You would have to make all earlier batches of this worker again, in
# the same order.


# %% replay
def changed_batches(loader, kept):
    return [
        (epoch, number)
        for epoch, number, batch in kept
        if loader.replay(epoch, number).batch.numpy().tobytes()
        != batch.numpy().tobytes()
    ]


# %% replay | mistake: nan is not equal to itself | hint: nan is not equal to itself
def changed_batches(loader, kept):
    return [
        (e, n)
        for e, n, batch in kept
        if not torch.equal(loader.replay(e, n).batch, batch)
    ]


# %% replay | mistake: close is not equal | hint: changed in its last bit
def changed_batches(loader, kept):
    return [
        (e, n)
        for e, n, batch in kept
        if not torch.allclose(loader.replay(e, n).batch, batch, equal_nan=True)
    ]


# %% replay | mistake: returns the unchanged ones | hint: a batch that was not changed
def changed_batches(loader, kept):
    return [
        (e, n)
        for e, n, batch in kept
        if loader.replay(e, n).batch.numpy().tobytes() == batch.numpy().tobytes()
        and not batch.isnan().any()
    ]
