"""The key of unit 1, and wrong answers that the checks must reject."""


# %% sampler
def batches(length, batch_size, drop_last):
    lists = [
        list(range(at, min(at + batch_size, length)))
        for at in range(0, length, batch_size)
    ]
    return [indices for indices in lists if len(indices) == batch_size or not drop_last]


# %% sampler | mistake: the last batch runs over the end | hint: has the indices 0 to
def batches(length, batch_size, drop_last):
    return [list(range(at, at + batch_size)) for at in range(0, length, batch_size)]


# %% sampler | mistake: an incomplete batch is always dropped | hint: loses 2 samples
def batches(length, batch_size, drop_last):
    return [
        list(range(at, at + batch_size))
        for at in range(0, length - batch_size + 1, batch_size)
    ]


# %% sampler | mistake: drop_last is ignored | hint: still has the incomplete last batch
def batches(length, batch_size, drop_last):
    return [
        list(range(at, min(at + batch_size, length)))
        for at in range(0, length, batch_size)
    ]


# %% sampler | mistake: batches overlap by one | hint: an index twice
def batches(length, batch_size, drop_last):
    return [
        list(range(at, min(at + batch_size + 1, length)))
        for at in range(0, length, batch_size)
    ]


# %% collate
def collate(samples):
    images, labels = zip(*samples, strict=True)
    return np.stack(images), np.asarray(labels)


# %% collate | mistake: lists instead of arrays | hint: one array of each
def collate(samples):
    return [image for image, _ in samples], [label for _, label in samples]


# %% collate | mistake: joined along the first dimension of the images | hint: You need a new first dimension
def collate(samples):
    return np.concatenate([image for image, _ in samples]), np.array(
        [label for _, label in samples]
    )


# %% collate | mistake: the type of the images changes | hint: times the memory
def collate(samples):
    return np.array([image for image, _ in samples], dtype=np.float64), np.array(
        [label for _, label in samples]
    )


# %% collate | mistake: labels in another order | hint: image i and label i belong together
def collate(samples):
    return np.stack([image for image, _ in samples]), np.array(
        [label for _, label in samples[::-1]]
    )


# %% collate | mistake: labels became floating-point numbers | hint: whole numbers, and became float64
def collate(samples):
    return np.stack([image for image, _ in samples]), np.array(
        [label for _, label in samples], np.float64
    )


# %% collate | mistake: labels are an array of Python objects | hint: whole numbers, and became object
def collate(samples):
    return np.stack([image for image, _ in samples]), np.array(
        [label for _, label in samples], object
    )


# %% collate | mistake: images and labels are stacked together | hint: at the line `return np.stack([np.asarray(part)
def collate(samples):
    return np.stack([np.asarray(part) for sample in samples for part in sample])


# %% window
ready = 3 * 2


# %% window | mistake: one batch for each worker | hint: What does prefetch_factor count
ready = 3


# %% window | mistake: nothing happens before the loop asks | hint: without workers
ready = 0


# %% window | mistake: the whole epoch is loaded | hint: the whole epoch
ready = 100


# %% window | mistake: samples instead of batches | hint: counts batches
ready = 24


# %% window-explain
# The window is full: 3 workers times a `prefetch_factor` of 2 are 6 batches, and all of them are on the path. The
# loader sends another batch only when the loop takes one. Without this limit, finished batches would pile up until all
# 100, the whole dataset, are in memory.


# %% step
ready_numbers = [4, 5, 6, 7, 8, 9]


# %% step | mistake: the window does not move | hint: the loop has taken it
ready_numbers = [0, 1, 2, 3, 4, 5]


# %% step | mistake: the window is not filled again | hint: the window is full again
ready_numbers = [4, 5]


# %% step | mistake: the step that comes next is already begun | hint: does not grow
ready_numbers = [4, 5, 6, 7, 8, 9, 10]


# %% step | mistake: the right batches in another order | hint: in the order of the epoch
ready_numbers = [9, 8, 7, 6, 5, 4]


# %% step-explain
# The loop decides. Each batch that it takes makes room in the window, and then the loader sends the next one. Workers
# and the clock only decide how soon a batch that was sent is finished.


# %% hold
late = {"ready": 2, "in flight": 2, "reordering": 2}


# %% hold | mistake: finished batches count as ready | hint: while batch 2 is missing
late = {"ready": 4, "in flight": 2, "reordering": 0}


# %% hold | mistake: the others wait for the late one | hint: The other workers have time
late = {"ready": 2, "in flight": 4, "reordering": 0}


# %% hold | mistake: the window is forgotten | hint: add up to
late = {"ready": 2, "in flight": 2, "reordering": 12}


# %% hold-explain
# Workers finish in any order, and the buffer restores the order that the sampler has drawn. Without it, 1.4 could not
# be repeated, since the batches that the loop has would depend on chance. The same holds for the order of samples at
# the end of 1.5. The 6 ready batches of 1.3 would stay the same, since they are only counted.


# %% overtakers
def overtakers(records, number):
    (late,) = [record for record in records if record.index == number]
    return sorted(
        record.index
        for record in records
        if record.index > number and record.received < late.received
    )


# %% overtakers | mistake: earlier batches count too | hint: it overtook nobody
def overtakers(records, number):
    (late,) = [record for record in records if record.index == number]
    return sorted(record.index for record in records if record.received < late.received)


# %% overtakers | mistake: compares the order of delivery | hint: You say that [] overtook
def overtakers(records, number):
    (late,) = [record for record in records if record.index == number]
    return sorted(
        record.index
        for record in records
        if record.index > number and record.delivered < late.delivered
    )


# %% stages
def stages(record):
    stamps = [
        "dispatched",
        "fetch_begin",
        "fetched",
        "collated",
        "received",
        "in_order",
        "delivered",
        "returned",
    ]
    names = ["queue", "fetch", "collate", "transport", "reorder", "ready", "step"]
    times = [getattr(record, stamp) / 1e6 for stamp in stamps]
    return {
        name: end - begin
        for name, begin, end in zip(names, times, times[1:], strict=False)
    }


# %% stages | mistake: nanoseconds | hint: A millisecond has a million of them
def stages(record):
    stamps = [
        "dispatched",
        "fetch_begin",
        "fetched",
        "collated",
        "received",
        "in_order",
        "delivered",
        "returned",
    ]
    names = ["queue", "fetch", "collate", "transport", "reorder", "ready", "step"]
    times = [getattr(record, stamp) for stamp in stamps]
    return {
        name: end - begin
        for name, begin, end in zip(names, times, times[1:], strict=False)
    }


# %% stages | mistake: a stage is left out | hint: a number (milliseconds, also for 'step'
def stages(record):
    stamps = [
        "dispatched",
        "fetch_begin",
        "fetched",
        "collated",
        "received",
        "in_order",
        "delivered",
    ]
    names = ["queue", "fetch", "collate", "transport", "reorder", "ready"]
    times = [getattr(record, stamp) / 1e6 for stamp in stamps]
    return {
        n: end - begin for n, begin, end in zip(names, times, times[1:], strict=False)
    } | {"step": ...}


# %% stages | mistake: each stage is measured from the dispatch | hint: begins where the one before it ends
def stages(record):
    stamps = [
        "fetch_begin",
        "fetched",
        "collated",
        "received",
        "in_order",
        "delivered",
        "returned",
    ]
    names = ["queue", "fetch", "collate", "transport", "reorder", "ready", "step"]
    return {
        n: (getattr(record, s) - record.dispatched) / 1e6
        for n, s in zip(names, stamps, strict=True)
    }


# %% stages | mistake: the queue begins at the request | hint: 'queue' lasts from dispatched
def stages(record):
    stamps = [
        "requested",
        "fetch_begin",
        "fetched",
        "collated",
        "received",
        "in_order",
        "delivered",
        "returned",
    ]
    names = ["queue", "fetch", "collate", "transport", "reorder", "ready", "step"]
    times = [getattr(record, stamp) / 1e6 for stamp in stamps]
    return {
        name: end - begin
        for name, begin, end in zip(names, times, times[1:], strict=False)
    }


# %% waited
def waited(records):
    epoch = records[-1].returned - records[0].requested
    return sum(record.delivered - record.requested for record in records) / epoch


# %% waited | mistake: the mean of the shares | hint: must count more than a short one
def waited(records):
    shares = [(r.delivered - r.requested) / (r.returned - r.requested) for r in records]
    return sum(shares) / len(shares)


# %% waited | mistake: not divided | hint: Divide it
def waited(records):
    return sum(record.delivered - record.requested for record in records)


# %% waited | mistake: compared with the steps | hint: divide by the time of the steps
def waited(records):
    return sum(r.delivered - r.requested for r in records) / sum(
        r.returned - r.delivered for r in records
    )
