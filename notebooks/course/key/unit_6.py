"""The key of unit 6, and wrong answers that the checks must reject."""

# %% a-answer
cause_a = "in_process"


def cured_a():
    return DataLoader(Disk(), batch_size=4, num_workers=4, workers="thread")


# %% a-answer | mistake: the disk is the cause, whoever waits for it | hint: how many workers does this loader have
cause_a = "workers_wait"


# %% a-answer | mistake: one worker | hint: still made one after the other
cause_a = "in_process"


def cured_a():
    return DataLoader(Disk(), batch_size=4, num_workers=1, workers="thread")


# %% a-answer | mistake: other batches | hint: the batches are not the same
cause_a = "in_process"


def cured_a():
    return DataLoader(Disk(), batch_size=16, num_workers=4, workers="thread")


# %% b-answer
cause_b = "window"


def cured_b():
    return DataLoader(Disk(), batch_size=4, num_workers=4, workers="thread")


# %% b-answer | mistake: the samples wait, but that is not what limits | hint: How many batches may be on the path
cause_b = "workers_wait"


# %% b-answer | mistake: more workers | hint: however many there are
cause_b = "window"


def cured_b():
    return DataLoader(Disk(), batch_size=4, num_workers=8, workers="thread", prefetch=1)


# %% c-answer
cause_c = "workers_compute"


class LookupOnce(Lookup):
    def __init__(self):
        self.table = make_table(60_000)

    def __getitem__(self, i):
        return self.table[i]


def cured_c():
    return DataLoader(LookupOnce(), batch_size=8, num_workers=1)


# %% c-answer | mistake: it waits for something | hint: look at the hottest line
cause_c = "workers_wait"


# %% c-answer | mistake: more workers do the same work | hint: its result is the same each time
cause_c = "workers_compute"


def cured_c():
    return DataLoader(Lookup(), batch_size=8, num_workers=2)


# %% c-answer | mistake: the work is left out | hint: was not called at all
cause_c = "workers_compute"


class LookupOnce(Lookup):
    def __getitem__(self, i):
        return i * i


def cured_c():
    return DataLoader(LookupOnce(), batch_size=8, num_workers=1)


# %% d-answer
cause_d = "collate"


def cured_d():
    return DataLoader(Arrays(), batch_size=8, num_workers=1)


# %% d-answer | mistake: the samples | hint: What happens to them then
cause_d = "workers_compute"


# %% d-answer | mistake: another type | hint: and now it is float64
cause_d = "collate"


def cured_d():
    return DataLoader(Arrays(), batch_size=8, num_workers=1, collate_fn=lambda s: np.stack(s).astype(np.float64))


# %% d-answer | mistake: another loop | hint: without a loop over elements
cause_d = "collate"


def cured_d():
    def collate(samples):
        return np.array([[float(value) for value in sample] for sample in samples], np.float32)

    return DataLoader(Arrays(), batch_size=8, num_workers=2, collate_fn=collate)


# %% e-answer
cause_e = "huge_batches"


class Stored(Converted):
    def __getitem__(self, i):
        return self.images[i % 16]


def cured_e():
    return DataLoader(Stored(), batch_size=16, num_workers=1)


# %% e-answer | mistake: the collate function | hint: multiply
cause_e = "collate"


# %% e-answer | mistake: half of the bytes | hint: 4 times the bytes
cause_e = "huge_batches"


class Stored(Converted):
    def __getitem__(self, i):
        return self.images[i % 16].astype(np.float32) / 255


def cured_e():
    return DataLoader(Stored(), batch_size=16, num_workers=1)


# %% e-answer | mistake: divided, then cut off | hint: something was lost
cause_e = "huge_batches"


class Stored(Converted):
    def __getitem__(self, i):
        return (self.images[i % 16] / 255).astype(np.uint8)


def cured_e():
    return DataLoader(Stored(), batch_size=16, num_workers=1)


# %% f-answer
cause_f = "pickle"


def to_arrays(samples):
    return {
        "id": np.array([sample["id"] for sample in samples]),
        "values": np.array([sample["values"] for sample in samples]),
    }


def cured_f():
    return DataLoader(Measurements(), batch_size=20, num_workers=1, collate_fn=to_arrays)


# %% f-answer | mistake: the size | hint: How does that get to another process
cause_f = "huge_batches"


# %% f-answer | mistake: the default collate function on lists | hint: a hundred separate fields
cause_f = "pickle"


def cured_f():
    return DataLoader(Measurements(), batch_size=20, num_workers=1)


# %% f-answer | mistake: text instead of objects | hint: should be a dict
cause_f = "pickle"


def cured_f():
    return DataLoader(Measurements(), batch_size=20, num_workers=1, collate_fn=json.dumps)


# %% g-answer
cause_g = "sampler"


def cured_g():
    weights = HeaviestFirst.weights
    order = sorted(range(len(weights)), key=lambda i: weights[i], reverse=True)
    return DataLoader(list(range(1000)), batch_size=10, sampler=order, num_workers=2)


# %% g-answer | mistake: the workers | hint: Who needs a long time
cause_g = "workers_compute"


# %% g-answer | mistake: more workers | hint: Sort once
cause_g = "sampler"


def cured_g():
    return DataLoader(list(range(1000)), batch_size=10, sampler=HeaviestFirst(), num_workers=3)


# %% g-answer | mistake: the lightest first | hint: the batches are not the same
cause_g = "sampler"


def cured_g():
    weights = HeaviestFirst.weights
    order = sorted(range(len(weights)), key=lambda i: weights[i])
    return DataLoader(list(range(1000)), batch_size=10, sampler=order, num_workers=2)


# %% h-answer
cause_h = "slow_samples"


def cured_h():
    return DataLoader(Files(thumbnails_for=range(3, 120, 10)), batch_size=5, num_workers=2, workers="thread")


# %% h-answer | mistake: all samples wait | hint: have in common
cause_h = "workers_wait"


# %% h-answer | mistake: thumbnails for all | hint: have time for twelve
cause_h = "slow_samples"


def cured_h():
    return DataLoader(Files(thumbnails_for=range(120)), batch_size=5, num_workers=2, workers="thread")


# %% h-answer | mistake: a larger window | hint: originals are still read
cause_h = "slow_samples"


def cured_h():
    return DataLoader(Files(), batch_size=5, num_workers=2, workers="thread", prefetch_factor=8)


# %% i-answer
cause_i = "startup"


def cured_i():
    return DataLoader(Indexed(folder), batch_size=4, num_workers=2, persistent_workers=True)


# %% i-answer | mistake: slow samples | hint: before its first sample
cause_i = "slow_samples"


# %% i-answer | mistake: requested earlier, but read as often | hint: lets workers keep theirs
cause_i = "startup"


def cured_i():
    return DataLoader(Indexed(folder), batch_size=4, num_workers=2, prefetch_factor=4)


# %% j-answer
cause_j = "consumer"


def train(loader, draw):
    losses = []
    for count, batch in enumerate(loader, 1):
        losses.append(batch.sum().item())
        if count % 50 == 0:
            draw(losses)
    draw(losses)
    return losses


# %% j-answer | mistake: the loader | hint: compares the time of your loop
cause_j = "workers_wait"


# %% j-answer | mistake: the last losses are never shown | hint: draw once more at the end
cause_j = "consumer"


def train(loader, draw):
    losses = []
    for count, batch in enumerate(loader):
        losses.append(batch.sum().item())
        if count % 50 == 0:
            draw(losses)
    return losses


# %% j-answer | mistake: only some losses are kept | hint: 120 are needed
cause_j = "consumer"


def train(loader, draw):
    losses = [batch.sum().item() for count, batch in enumerate(loader) if count % 10 == 0]
    draw(losses)
    return losses


# %% j-answer | mistake: still after each batch | hint: Nobody looks at all of them
cause_j = "consumer"


def train(loader, draw):
    losses = []
    for batch in loader:
        losses.append(batch.sum().item())
        draw(losses)
    return losses


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
