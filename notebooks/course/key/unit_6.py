"""The key of unit 6, and wrong answers that the checks must reject."""

# %% a-cause
cause_a = "in_process"


# %% a-cause | mistake: the disk is the cause, whoever waits for it | hint: how many workers does this loader have
cause_a = "workers_wait"


# %% a-answer
def cured_a():
    return DataLoader(Disk(), batch_size=4, num_workers=4, workers="thread")


# %% a-answer | mistake: one worker | hint: still made one after the other
def cured_a():
    return DataLoader(Disk(), batch_size=4, num_workers=1, workers="thread")


# %% a-answer | mistake: other batches | hint: the batches are not the same
def cured_a():
    return DataLoader(Disk(), batch_size=16, num_workers=4, workers="thread")


# %% b-cause
cause_b = "window"


# %% b-cause | mistake: the samples wait, but that is not what limits | hint: How many batches may be on the path
cause_b = "workers_wait"


# %% b-answer
def cured_b():
    return DataLoader(Disk(), batch_size=4, num_workers=4, workers="thread")


# %% b-answer | mistake: more workers | hint: however many there are
def cured_b():
    return DataLoader(Disk(), batch_size=4, num_workers=8, workers="thread", prefetch=1)


# %% b-answer | mistake: fewer batches than workers | hint: some of them are always idle
def cured_b():
    return DataLoader(Disk(), batch_size=4, num_workers=4, workers="thread", prefetch=2)


# %% c-cause
cause_c = "workers_compute"


# %% c-cause | mistake: it waits for something | hint: look at the hottest line
cause_c = "workers_wait"


# %% c-answer
class LookupOnce(Lookup):
    def __init__(self):
        self.table = make_table(60_000)

    def __getitem__(self, i):
        return self.table[i]


def cured_c():
    return DataLoader(LookupOnce(), batch_size=8, num_workers=1)


# %% c-answer | mistake: more workers do the same work | hint: its result is the same each time
def cured_c():
    return DataLoader(Lookup(), batch_size=8, num_workers=2)


# %% c-answer | mistake: the work is left out | hint: was not called when the loader was made
class LookupOnce(Lookup):
    def __getitem__(self, i):
        return i * i


def cured_c():
    return DataLoader(LookupOnce(), batch_size=8, num_workers=1)


# %% d-cause
cause_d = "collate"


# %% d-cause | mistake: the samples | hint: What happens to them then
cause_d = "workers_compute"


# %% d-answer
def cured_d():
    return DataLoader(Arrays(), batch_size=8, num_workers=1)


# %% d-answer | mistake: another type | hint: and now it is float64
def cured_d():
    return DataLoader(
        Arrays(),
        batch_size=8,
        num_workers=1,
        collate_fn=lambda s: np.stack(s).astype(np.float64),
    )


# %% d-answer | mistake: another loop | hint: without a loop over elements
def cured_d():
    def collate(samples):
        return np.array(
            [[float(value) for value in sample] for sample in samples], np.float32
        )

    return DataLoader(Arrays(), batch_size=8, num_workers=2, collate_fn=collate)


# %% e-cause
cause_e = "huge_batches"


# %% e-cause | mistake: the collate function | hint: multiply
cause_e = "collate"


# %% e-answer
class Stored(Converted):
    def __getitem__(self, i):
        return self.images[i % 16]


def cured_e():
    return DataLoader(Stored(), batch_size=16, num_workers=1)


# %% e-answer | mistake: half of the bytes | hint: 4 times the bytes
class Stored(Converted):
    def __getitem__(self, i):
        return self.images[i % 16].astype(np.float32) / 255


def cured_e():
    return DataLoader(Stored(), batch_size=16, num_workers=1)


# %% e-answer | mistake: divided, then cut off | hint: something was lost
class Stored(Converted):
    def __getitem__(self, i):
        return (self.images[i % 16] / 255).astype(np.uint8)


def cured_e():
    return DataLoader(Stored(), batch_size=16, num_workers=1)


# %% f-cause
cause_f = "pickle"


# %% f-cause | mistake: the size | hint: How does that get to another process
cause_f = "huge_batches"


# %% f-answer
def to_arrays(samples):
    return {
        "id": np.array([sample["id"] for sample in samples]),
        "values": np.array([sample["values"] for sample in samples]),
    }


def cured_f():
    return DataLoader(
        Measurements(), batch_size=20, num_workers=1, collate_fn=to_arrays
    )


# %% f-answer | mistake: the default collate function on lists | hint: a hundred separate fields
def cured_f():
    return DataLoader(Measurements(), batch_size=20, num_workers=1)


# %% f-answer | mistake: text instead of objects | hint: should be a dict
def cured_f():
    return DataLoader(
        Measurements(), batch_size=20, num_workers=1, collate_fn=json.dumps
    )


# %% g-cause
cause_g = "sampler"


# %% g-cause | mistake: the workers | hint: Who needs a long time
cause_g = "workers_compute"


# %% g-answer
def cured_g():
    weights = HeaviestFirst.weights
    order = sorted(range(len(weights)), key=lambda i: weights[i], reverse=True)
    return DataLoader(list(range(1000)), batch_size=10, sampler=order, num_workers=2)


# %% g-answer | mistake: more workers | hint: Sort once
def cured_g():
    return DataLoader(
        list(range(1000)), batch_size=10, sampler=HeaviestFirst(), num_workers=3
    )


# %% g-answer | mistake: the lightest first | hint: the batches are not the same
def cured_g():
    weights = HeaviestFirst.weights
    order = sorted(range(len(weights)), key=lambda i: weights[i])
    return DataLoader(list(range(1000)), batch_size=10, sampler=order, num_workers=2)


# %% g-answer | mistake: the same search, but not in a function | hint: something still searches
class InlineSearch(HeaviestFirst):
    def __iter__(self):
        left = set(range(len(self.weights)))
        while left:
            index = max(left, key=lambda i: self.weights[i])
            left.remove(index)
            yield index


def cured_g():
    return DataLoader(
        list(range(1000)), batch_size=10, sampler=InlineSearch(), num_workers=2
    )


# %% h-cause
cause_h = "slow_samples"


# %% h-cause | mistake: all samples wait | hint: have in common
cause_h = "workers_wait"


# %% h-answer
def cured_h():
    return DataLoader(
        Files(thumbnails_for=range(3, 120, 10)),
        batch_size=5,
        num_workers=2,
        workers="thread",
    )


# %% h-answer | mistake: thumbnails for all | hint: have time for twelve
def cured_h():
    return DataLoader(
        Files(thumbnails_for=range(120)), batch_size=5, num_workers=2, workers="thread"
    )


# %% h-answer | mistake: a larger window | hint: originals are still read
def cured_h():
    return DataLoader(
        Files(), batch_size=5, num_workers=2, workers="thread", prefetch_factor=8
    )


# %% h-explain
# The 12 originals take 360 ms, and the other 108 files 54 ms. Both workers are busy nearly all the time, so the epoch
# takes at least half of these 414 ms, however many batches are requested ahead. A larger window helps if workers are
# idle, because an original holds up the loop, and the window is full of batches that wait for it. (So it is in torch's
# loader. nbloader does not count batches that are blocked behind a late one.)
# If originals are rare enough, the batches that are made in advance bridge this wait.


# %% i-cause
cause_i = "startup"


# %% i-cause | mistake: slow samples | hint: before its first sample
cause_i = "slow_samples"


# %% i-answer
def cured_i():
    return DataLoader(
        Indexed(folder), batch_size=4, num_workers=2, persistent_workers=True
    )


# %% i-answer | mistake: requested earlier, but read as often | hint: lets workers keep theirs
def cured_i():
    return DataLoader(Indexed(folder), batch_size=4, num_workers=2, prefetch_factor=4)


# %% j-cause
cause_j = "consumer"


# %% j-cause | mistake: the loader | hint: compares the time of your loop
cause_j = "workers_wait"


# %% j-answer
def train(loader, draw):
    losses = []
    for count, batch in enumerate(loader, 1):
        losses.append(batch.sum().item())
        if count % 50 == 0:
            draw(losses)
    draw(losses)
    return losses


# %% j-answer | mistake: the last losses are never shown | hint: draw once more at the end
def train(loader, draw):
    losses = []
    for count, batch in enumerate(loader):
        losses.append(batch.sum().item())
        if count % 50 == 0:
            draw(losses)
    return losses


# %% j-answer | mistake: only some losses are kept | hint: 120 are needed
def train(loader, draw):
    losses = [
        batch.sum().item() for count, batch in enumerate(loader) if count % 10 == 0
    ]
    draw(losses)
    return losses


# %% j-answer | mistake: still after each batch | hint: Nobody looks at all of them
def train(loader, draw):
    losses = []
    for batch in loader:
        losses.append(batch.sum().item())
        draw(losses)
    return losses


# %% predicted
predicted_speedup = 4


# %% predicted | mistake: text instead of a number | hint: how many times as fast
predicted_speedup = "twice"


# %% speedup
def speedup(before, after):
    return statistics.median(before) / statistics.median(after)


# %% speedup | mistake: the other way round | hint: Divide the other way round
def speedup(before, after):
    return statistics.median(after) / statistics.median(before)


# %% speedup | mistake: the mean | hint: moves the mean
def speedup(before, after):
    return statistics.mean(before) / statistics.mean(after)


# %% speedup | mistake: seconds instead of a ratio | hint: The answer is a ratio
def speedup(before, after):
    return statistics.median(before) - statistics.median(after)


# %% speedup | mistake: the first run only | hint: is 2, and you return
def speedup(before, after):
    return before[0] / after[-1]
