"""The key of unit 3, and wrong answers that the checks must reject."""

# %% deadlock
state = {"delivered": 0, "failed": 0, "busy": 2}


# %% deadlock | mistake: one of them wins | hint: Who lets go of one
state = {"delivered": 1, "failed": 0, "busy": 1}


# %% deadlock | mistake: a deadlock is an error | hint: waiting is no error
state = {"delivered": 0, "failed": 2, "busy": 2}


# %% deadlock | mistake: who waits is idle | hint: it has a batch
state = {"delivered": 0, "failed": 0, "busy": 0}


# %% deadlock-explain
# Waiting for a lock is no error: each worker is inside a call that returns when the lock is free. Each holds the lock
# that the other one wants, and gives it back only after it has got its second lock. Time changes nothing about that, so
# someone outside has to end one of the workers.


# %% ordered
def locking_order(names):
    return sorted(names)


# %% ordered | mistake: as given | hint: must not depend on how the names were given
def locking_order(names):
    return names


# %% ordered | mistake: the shortest name first, which leaves ties | hint: Two such workers can wait for each other
def locking_order(names):
    return sorted(names, key=len)


# %% ordered | mistake: sorted in place, which returns None | hint: a list of names is needed
def locking_order(names):
    return names.sort()


# %% ordered | mistake: one lock only | hint: must lock all of them
def locking_order(names):
    return names[:1]


# %% order
wrong_labels = 10


# %% order | mistake: only the late one | hint: which batch got the labels of batch 0
wrong_labels = 1


# %% order | mistake: the loader restores the order | hint: the first to arrive is not batch 0
wrong_labels = 0


# %% order | mistake: the late one gets its own labels | hint: which labels are left for the tenth
wrong_labels = 9


# %% order-explain
# Each batch is valid, and so is each list of labels. Only the pairs are wrong, and nobody checks them. In a training
# the loss hardly falls, and the accuracy stays as bad as guessing. You find the cause if you look at some samples
# together with their labels.


# %% indexed
class WithIndex:
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return i, self.dataset[i]


# %% indexed | mistake: counts calls | hint: counting does not tell which one it is
class WithIndex:
    def __init__(self, dataset):
        self.dataset, self.count = dataset, -1

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        self.count += 1
        return self.count, self.dataset[i]


# %% indexed | mistake: the other way round | hint: the index comes first
class WithIndex:
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return self.dataset[i], i


# %% leak
times_more = 32


# %% leak | mistake: views are copies | hint: that is what copies would need
times_more = 1


# %% leak | mistake: multiplies with the number of batches | hint: number of batches does not matter
times_more = 32 * 6


# %% leak-explain
# A view has no memory of its own, so the memory of the whole batch stays in use as long as the view lives. The loader
# may use memory again only when nobody looks at it any more, or the kept image would change. So 6 kept images block 6
# whole batches, 32 times what they need.


# %% keep
def first_image(images):
    return images[0].clone()


# %% keep | mistake: a view | hint: still a view of a whole batch
def first_image(images):
    return images[0]


# %% keep | mistake: detached, but the same memory | hint: still a view of a whole batch
def first_image(images):
    return images[0].detach().contiguous()


# %% keep | mistake: a batch of one | hint: an image has the shape
def first_image(images):
    return images[:1].clone()


# %% keep | mistake: converted to floating-point numbers | hint: and you return torch.float32
def first_image(images):
    return images[0].float()


# %% keep | mistake: made from a list, which forgets the type | hint: and you return torch.int64
def first_image(images):
    return torch.tensor(images[0].tolist())


# %% bounded
class Cache:
    def __init__(self, read, limit):
        self.read, self.limit = read, limit
        self.kept = collections.OrderedDict()

    def __getitem__(self, i):
        if i in self.kept:
            self.kept.move_to_end(i)
        else:
            self.kept[i] = self.read(i)
            if len(self.kept) > self.limit:
                self.kept.popitem(last=False)
        return self.kept[i]

    def __len__(self):
        return len(self.kept)


# %% bounded | mistake: no limit | hint: it is the leak itself
class Cache:
    def __init__(self, read, limit):
        self.read, self.kept = read, {}

    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = self.read(i)
        return self.kept[i]

    def __len__(self):
        return len(self.kept)


# %% bounded | mistake: a full cache takes nothing new | hint: The newest must not make way
class Cache:
    def __init__(self, read, limit):
        self.read, self.limit, self.kept = read, limit, {}

    def __getitem__(self, i):
        if i in self.kept:
            return self.kept[i]
        sample = self.read(i)
        if len(self.kept) < self.limit:
            self.kept[i] = sample
        return sample

    def __len__(self):
        return len(self.kept)


# %% bounded | mistake: a full cache is emptied | hint: Only one goes at a time
class Cache:
    def __init__(self, read, limit):
        self.read, self.limit, self.kept = read, limit, {}

    def __getitem__(self, i):
        if i not in self.kept:
            if len(self.kept) == self.limit:
                self.kept.clear()
            self.kept[i] = self.read(i)
        return self.kept[i]

    def __len__(self):
        return len(self.kept)


# %% bounded | mistake: what was added first goes | hint: because it was *added* first
class Cache:
    def __init__(self, read, limit):
        self.read, self.limit, self.kept = read, limit, {}

    def __getitem__(self, i):
        if i not in self.kept:
            if len(self.kept) == self.limit:
                self.kept.pop(next(iter(self.kept)))
            self.kept[i] = self.read(i)
        return self.kept[i]

    def __len__(self):
        return len(self.kept)


# %% bounded | mistake: it always keeps three | hint: with a limit of 1 it keeps 3
class Cache:
    def __init__(self, read, limit):
        self.read, self.kept = read, {}

    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = self.read(i)
        self.kept[i] = self.kept.pop(i)
        if len(self.kept) > 3:
            self.kept.pop(next(iter(self.kept)))
        return self.kept[i]

    def __len__(self):
        return len(self.kept)


# %% bounded | mistake: it keeps three at most | hint: with a limit of 5 it keeps 3
class Cache:
    def __init__(self, read, limit):
        self.read, self.limit, self.kept = read, min(limit, 3), {}

    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = self.read(i)
        self.kept[i] = self.kept.pop(i)
        if len(self.kept) > self.limit:
            self.kept.pop(next(iter(self.kept)))
        return self.kept[i]

    def __len__(self):
        return len(self.kept)


# %% straggler
slow_sample = stats.slowest[0].index


# %% straggler | mistake: the batch | hint: is the number of the batch
slow_sample = stats.slowest[0].batch


# %% straggler | mistake: the worker | hint: It is not slow
slow_sample = stats.slowest[0].worker


# %% straggler | mistake: the other end of the list | hint: How is stats.slowest sorted
slow_sample = stats.slowest[-1].index


# %% rescue
def rescue(loader):
    busy = [worker for worker in loader.stats().workers if worker.batch is not None]
    slowest = max(busy, key=lambda worker: worker.batch_age)
    loader.restart_workers([slowest.worker])


# %% rescue | mistake: all of them | hint: The others lose what they have prepared
def rescue(loader):
    loader.restart_workers()


# %% rescue | mistake: a worker that is idle | hint: Which worker has a batch at all
def rescue(loader):
    idle = [worker for worker in loader.stats().workers if worker.batch is None]
    loader.restart_workers([idle[0].worker])


# %% rescue | mistake: waits for another batch | hint: no worker was restarted
def rescue(loader):
    if loader.stats().errors:
        loader.restart_workers()


# %% rescue | mistake: idle workers have no age | hint: raised TypeError
def rescue(loader):
    slowest = max(loader.stats().workers, key=lambda worker: worker.batch_age)
    loader.restart_workers([slowest.worker])
