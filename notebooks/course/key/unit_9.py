"""The key of unit 9, and wrong answers that the checks must reject."""


# %% copy-ms
def copy_ms(batch_size, shape, dtype, gb_per_second):
    return (
        batch_size
        * np.prod(shape)
        * np.dtype(dtype).itemsize
        / (gb_per_second * 1e9)
        * 1e3
    )


# %% copy-ms | mistake: seconds | hint: these are seconds
def copy_ms(batch_size, shape, dtype, gb_per_second):
    return (
        batch_size * np.prod(shape) * np.dtype(dtype).itemsize / (gb_per_second * 1e9)
    )


# %% copy-ms | mistake: the type is forgotten | hint: How many bytes has each
def copy_ms(batch_size, shape, dtype, gb_per_second):
    return batch_size * np.prod(shape) / (gb_per_second * 1e6)


# %% copy-ms | mistake: one sample | hint: the time of one sample
def copy_ms(batch_size, shape, dtype, gb_per_second):
    return np.prod(shape) * np.dtype(dtype).itemsize / (gb_per_second * 1e6)


# %% copy-ms | mistake: bits | hint: these are bits
def copy_ms(batch_size, shape, dtype, gb_per_second):
    return (
        8
        * batch_size
        * np.prod(shape)
        * np.dtype(dtype).itemsize
        / (gb_per_second * 1e6)
    )


# %% copy-ms | mistake: binary gigabytes | hint: not 2**30
def copy_ms(batch_size, shape, dtype, gb_per_second):
    return (
        1e3
        * batch_size
        * np.prod(shape)
        * np.dtype(dtype).itemsize
        / (gb_per_second * 2**30)
    )


# %% returns
goes_on = {
    "pageable, non_blocking=True": 14,
    "pinned, non_blocking=False": 14,
    "pinned, non_blocking=True": 0,
    "pinned, non_blocking=False, another stream": 4,
    "end of the copy, pinned, non_blocking=True": 14,
}


# %% returns | mistake: non_blocking works with any memory | hint: the host itself moves the bytes
goes_on = goes_on | {"pageable, non_blocking=True": 0}


# %% returns | mistake: the step of the stream is forgotten | hint: When does the stream begin it
goes_on = goes_on | {"pinned, non_blocking=False": 4}


# %% returns | mistake: the other stream waits, too | hint: this stream has no other work
goes_on = goes_on | {"pinned, non_blocking=False, another stream": 14}


# %% returns | mistake: the copy is done when the call returns | hint: the stream has the step first
goes_on = goes_on | {"end of the copy, pinned, non_blocking=True": 0}


# %% returns-explain
# On one stream a copy still comes after the step before it and before its own step. The device is busy as long as
# before, and only the host goes on earlier. Nobody may write to the batch's memory on the host, or give it to another
# batch, until the copy is done. An event tells when that is.


# %% streams
program = {
    "step 0 begins": 4,
    "copy 1 begins": 4,
    "step 1 begins": 14,
    "copy 2 begins": 24,
    "step 2 begins": 24,
    "step 2 reads the right bytes": False,
}


# %% streams | mistake: an event waits for all that comes later | hint: What was enqueued before this event was recorded
program = program | {"step 2 begins": 28, "step 2 reads the right bytes": True}


# %% streams | mistake: one stream after the other | hint: Does anything else keep it
program = program | {"copy 1 begins": 14, "step 1 begins": 18}


# %% streams | mistake: the step before is forgotten | hint: Which comes later
program = program | {"step 1 begins": 8}


# %% streams | mistake: wait_stream waits for nothing | hint: steps 0 and 1
program = program | {"copy 2 begins": 8}


# %% streams | mistake: wrong bytes are an error | hint: compare when step 2 begins
program = program | {"step 2 reads the right bytes": True}


# %% streams-explain
# Nothing. `early` would then happen when copy 0 is done, at 4 ms, like `first`. When step 2 waits for it, it has long
# happened. Step 2 still begins at 24 ms, without waiting for copy 2, and reads wrong bytes.


# %% overlap
def overlapped(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate()
        copies.copy(i, memory)
        device.main.wait_event(copies.record_event())
        device.main.step(i, memory)


# %% overlap | mistake: no wait | hint: What must the main stream wait for
def overlapped(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate()
        copies.copy(i, memory)
        device.main.step(i, memory)


# %% overlap | mistake: the event is recorded before the copy | hint: when was this event recorded
def overlapped(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate()
        event = copies.record_event()
        copies.copy(i, memory)
        device.main.wait_event(event)
        device.main.step(i, memory)


# %% overlap | mistake: one stream | hint: All work is on one stream
def overlapped(device, count):
    for i in range(count):
        memory = device.allocate()
        device.main.copy(i, memory)
        device.main.step(i, memory)


# %% overlap | mistake: the copy waits for the step before | hint: No copy overlaps a step
def overlapped(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate()
        copies.wait_stream(device.main)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)


# %% overlap | mistake: the host waits for each step | hint: or the host, which waits for something
def overlapped(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate()
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)
        device.main.synchronize()


# %% overlap | mistake: one memory for all batches | hint: writes into the same memory
def overlapped(device, count):
    copies, memory = device.stream("copies"), device.allocate()
    for i in range(count):
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)


# %% overlap | mistake: the last batch is forgotten | hint: Each should come once
def overlapped(device, count):
    copies = device.stream("copies")
    memory = [device.allocate() for _ in range(count)]
    copies.copy(0, memory[0])
    for i in range(count - 1):
        device.main.wait_stream(copies)
        copies.copy(i + 1, memory[i + 1])
        device.main.step(i, memory[i])


# %% overlap | mistake: the step reads the memory of the next batch | hint: was copied to other memory
def overlapped(device, count):
    copies = device.stream("copies")
    memory = [device.allocate() for _ in range(count + 1)]
    for i in range(count):
        copies.copy(i, memory[i])
        device.main.wait_stream(copies)
        device.main.step(i, memory[i + 1])


# %% overlap | mistake: the memory is not passed to the step | hint: pass the memory of its batch
def overlapped(device, count):
    copies = device.stream("copies")
    for i in range(count):
        copies.copy(i, device.allocate())
        device.main.wait_stream(copies)
        device.main.step(i)


# %% overlap | mistake: the first copies wait for nothing, and later ones for a step too many | hint: Which step, if any
def overlapped(device, count):
    copies, done = device.stream("copies"), []
    for i in range(count):
        memory = device.allocate()
        if i > 1:
            copies.wait_event(done[i - 2])
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)
        done.append(device.main.record_event())


# %% overlap | mistake: a step waits for the copy after its own, too | hint: for which one does it wait
def overlapped(device, count):
    copies = device.stream("copies")
    memory = [device.allocate() for _ in range(count)]
    copies.copy(0, memory[0])
    for i in range(count):
        if i + 1 < count:
            copies.copy(i + 1, memory[i + 1])
        device.main.wait_stream(copies)
        device.main.step(i, memory[i])


# %% slow
epochs = {
    "one stream, copies of 4 ms": 140,
    "two streams, copies of 4 ms": 104,
    "two streams, copies of 10 ms": 110,
    "two streams, copies of 15 ms": 160,
    "exposed for each batch, copies of 15 ms": 5,
}


# %% slow | mistake: the first copy is hidden, too | hint: nothing overlaps the first copy
epochs = epochs | {"two streams, copies of 4 ms": 100}


# %% slow | mistake: copies overlap even on one stream | hint: one after the other
epochs = epochs | {"one stream, copies of 4 ms": 104}


# %% slow | mistake: the last step is forgotten | hint: What comes after the last one
epochs = epochs | {"two streams, copies of 15 ms": 150}


# %% slow | mistake: a copy is hidden or not | hint: How much is left
epochs = epochs | {"exposed for each batch, copies of 15 ms": 15}


# %% slow-explain
# A faster link and smaller types do, since the link is the bottleneck: the copies alone take 150 of the 160 ms. More
# workers and copies that begin two batches ahead do not, since the link is always busy. Neither does a larger batch: as
# many bytes are copied, and the last step is longer. With 5 batches of twice the size it takes 170 ms.


# %% buffers
def double_buffered(device, count):
    copies, done = device.stream("copies"), []
    memory = [device.allocate(), device.allocate()]
    for i in range(count):
        if i >= 2:
            copies.wait_event(done[i - 2])
        copies.copy(i, memory[i % 2])
        device.main.wait_event(copies.record_event())
        device.main.step(i, memory[i % 2])
        done.append(device.main.record_event())


# %% buffers | mistake: memory for each batch | hint: Only 2 fit
def double_buffered(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate()
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)


# %% buffers | mistake: nobody waits for the step | hint: writes into the same memory
def double_buffered(device, count):
    copies = device.stream("copies")
    memory = [device.allocate(), device.allocate()]
    for i in range(count):
        copies.copy(i, memory[i % 2])
        device.main.wait_stream(copies)
        device.main.step(i, memory[i % 2])


# %% buffers | mistake: the event is recorded before the step | hint: Who must wait for whom
def double_buffered(device, count):
    copies, done = device.stream("copies"), []
    memory = [device.allocate(), device.allocate()]
    for i in range(count):
        if i >= 2:
            copies.wait_event(done[i - 2])
        copies.copy(i, memory[i % 2])
        device.main.wait_stream(copies)
        done.append(device.main.record_event())
        device.main.step(i, memory[i % 2])


# %% buffers | mistake: waits for the step before instead of that before it | hint: No copy overlaps a step
def double_buffered(device, count):
    copies = device.stream("copies")
    memory = [device.allocate(), device.allocate()]
    for i in range(count):
        copies.wait_stream(device.main)
        copies.copy(i, memory[i % 2])
        device.main.wait_stream(copies)
        device.main.step(i, memory[i % 2])


# %% buffers | mistake: the main stream waits for copies that it does not need | hint: all work of a stream
def double_buffered(device, count):
    copies, done = device.stream("copies"), []
    memory = [device.allocate(), device.allocate()]
    copies.copy(0, memory[0])
    for i in range(count):
        if i + 1 < count:
            if i >= 1:
                copies.wait_event(done[i - 1])
            copies.copy(i + 1, memory[(i + 1) % 2])
        device.main.wait_stream(copies)
        device.main.step(i, memory[i % 2])
        done.append(device.main.record_event())


# %% buffers | mistake: one buffer | hint: No copy overlaps a step
def double_buffered(device, count):
    copies, memory = device.stream("copies"), device.allocate()
    for i in range(count):
        copies.wait_stream(device.main)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)


# %% buffers-explain
# When copies or steps do not always take the same time. With a third buffer, a long copy can begin one step earlier,
# and several short copies can be done during one long step. If all copies are equally long and all steps are, too, two
# buffers are enough, since the slower of the two never pauses.


# %% faults
fault_of = {
    "A": "event too early",
    "B": "reused too early",
    "C": "none",
    "D": "no wait",
    "E": "no overlap",
}


# %% faults | mistake: an event is enough | hint: What had been enqueued when it was recorded
fault_of = fault_of | {"A": "none"}


# %% faults | mistake: two buffers are enough | hint: who waits for the end of a step
fault_of = fault_of | {"B": "none"}


# %% faults | mistake: only streams can wait | hint: The host may wait, too
fault_of = fault_of | {"C": "reused too early"}


# %% faults | mistake: the wait of the copies is taken for one of the steps | hint: what does the main stream wait for
fault_of = fault_of | {"D": "none"}


# %% faults | mistake: one buffer must be wrong | hint: when the copies wait for it
fault_of = fault_of | {"E": "reused too early"}


# %% faults | mistake: another word | hint: none of the words
fault_of = fault_of | {"D": "no event"}


# %% faults-explain
# Copy `i + 2` writes into the buffer of batch `i` without waiting for step `i`. But copy `i + 1` comes first, and if it
# takes longer than step `i`, this step is done by then. So a test of B passes on a machine with slow copies, while A
# and D fail with both speeds, and C and E pass. A test that passes does not prove that a loop waits, and only a look at
# the times shows that E is slow.


# %% allocator
def with_allocator(device, count):
    main, copies = device.main, device.stream("copies")

    def upload(i):
        memory = device.allocate(main)
        copies.wait_stream(main)
        copies.copy(i, memory)
        return memory, copies.record_event()

    following = upload(0)
    for i in range(count):
        memory, arrived = following
        if i + 1 < count:
            following = upload(i + 1)
        main.wait_event(arrived)
        main.step(i, memory)
        memory.free()


# %% allocator | mistake: unchanged | hint: writes into the same memory
def with_allocator(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate(copies)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)
        memory.free()


# %% allocator | mistake: the two buffers of 9.6, and nothing is freed | hint: frees the memory of 0 of 8 batches
def with_allocator(device, count):
    copies, done = device.stream("copies"), []
    memory = [device.allocate(), device.allocate()]
    for i in range(count):
        if i >= 2:
            copies.wait_event(done[i - 2])
        copies.copy(i, memory[i % 2])
        device.main.wait_event(copies.record_event())
        device.main.step(i, memory[i % 2])
        done.append(device.main.record_event())


# %% allocator | mistake: record_stream, and the host never waits | hint: at the *host's* time
def with_allocator(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate(copies)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)
        memory.record_stream(device.main)
        memory.free()


# %% allocator | mistake: the memory is never freed | hint: is it freed
def with_allocator(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate(copies)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)


# %% allocator | mistake: the wrong stream is recorded | hint: Who must wait for whom
def with_allocator(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate(copies)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)
        memory.record_stream(copies)
        memory.free()
        copies.synchronize()


# %% allocator | mistake: recorded after it was freed | hint: Who must wait for whom
def with_allocator(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate(copies)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)
        memory.free()
        memory.record_stream(device.main)


# %% allocator | mistake: allocated on the main stream, and the copies wait for nothing | hint: Who must wait for whom
def with_allocator(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate(device.main)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)
        memory.free()


# %% allocator | mistake: the host waits for each step | hint: or the host, which waits for something
def with_allocator(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate(copies)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)
        device.main.synchronize()
        memory.free()


# %% allocator | mistake: the copies wait for all steps | hint: No copy overlaps a step
def with_allocator(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate(device.main)
        copies.wait_stream(device.main)
        copies.copy(i, memory)
        device.main.wait_stream(copies)
        device.main.step(i, memory)
        memory.free()


# %% allocator | mistake: freed before it is used | hint: uses memory that was freed
def with_allocator(device, count):
    copies = device.stream("copies")
    for i in range(count):
        memory = device.allocate(copies)
        copies.copy(i, memory)
        memory.record_stream(device.main)
        memory.free()
        device.main.wait_stream(copies)
        device.main.step(i, memory)


# %% allocator-explain
# As much as all batches of the epoch. The host enqueues everything before the device has done any step. No event of a
# freed batch has happened as far as the host knows, so each `allocate` takes new memory. With 20 batches, `Device`
# takes memory for 20.


# %% uploads
uploaded = {
    "batches on the card, 10 MB/s, upload_ahead=0": 2,
    "batches on the card, 10 MB/s, upload_ahead=1": 3,
    "batches on the card, 10 MB/s, upload_ahead=2": 4,
    "hidden, 10 MB/s, upload_ahead=0": "none",
    "hidden, 10 MB/s, upload_ahead=1": "all",
    "hidden, 10 MB/s, upload_ahead=2": "all",
    "hidden, 1 MB/s, upload_ahead=1": "a part",
    "hidden, 1 MB/s, upload_ahead=2": "a part",
}


# %% uploads | mistake: the batch that the variable holds is forgotten | hint: the variable still holds
uploaded = uploaded | {
    f"batches on the card, 10 MB/s, upload_ahead={n}": n + 1 for n in range(3)
}


# %% uploads | mistake: pinned memory hides a copy without anything ahead | hint: What runs meanwhile
uploaded = uploaded | {"hidden, 10 MB/s, upload_ahead=0": "all"}


# %% uploads | mistake: ahead means hidden | hint: Does it become faster
uploaded = uploaded | {
    "hidden, 1 MB/s, upload_ahead=1": "all",
    "hidden, 1 MB/s, upload_ahead=2": "all",
}


# %% uploads | mistake: one more ahead hides a slow link | hint: Does it become faster
uploaded = uploaded | {"hidden, 1 MB/s, upload_ahead=2": "all"}


# %% hidden
def hidden_share(uploads):
    copying = sum(u.uploaded - u.upload_begin for u in uploads)
    exposed = sum(max(0, u.uploaded - max(u.needed, u.upload_begin)) for u in uploads)
    return 1 - exposed / copying


# %% hidden | mistake: needed after the copy counts as more than all | hint: All of it was hidden
def hidden_share(uploads):
    return sum(u.needed - u.upload_begin for u in uploads) / sum(
        u.uploaded - u.upload_begin for u in uploads
    )


# %% hidden | mistake: needed before the copy counts as less than nothing | hint: No copy is less hidden
def hidden_share(uploads):
    hidden = sum(min(u.needed, u.uploaded) - u.upload_begin for u in uploads)
    return hidden / sum(u.uploaded - u.upload_begin for u in uploads)


# %% hidden | mistake: the mean of shares | hint: A long copy counts for more
def hidden_share(uploads):
    shares = [
        min(max(u.needed - u.upload_begin, 0), u.uploaded - u.upload_begin)
        / (u.uploaded - u.upload_begin)
        for u in uploads
    ]
    return sum(shares) / len(shares)


# %% hidden | mistake: the exposed share | hint: All of it was hidden
def hidden_share(uploads):
    copying = sum(u.uploaded - u.upload_begin for u in uploads)
    return (
        sum(max(0, u.uploaded - max(u.needed, u.upload_begin)) for u in uploads)
        / copying
    )


# %% hidden | mistake: counts copies that are hidden as a whole | hint: 3 of 4 ms were over
def hidden_share(uploads):
    return sum(u.needed >= u.uploaded for u in uploads) / len(uploads)


# %% uploads-explain
# Each batch that was copied ahead lies on the card until the loop has used it, hidden or not. So the card holds
# `upload_ahead + 2` batches: 2, 3 and 4 here. It helps if the times of copies or steps vary: batches that are already
# on the card bridge a slow copy after a quick step.


# %% transport
class InBytes:
    def __len__(self):
        return len(check.PICTURES)

    def __getitem__(self, i):
        return check.PICTURES[i]


def normalize(batch):
    mean, std = (
        torch.tensor(values, device=batch.device).view(3, 1, 1)
        for values in (check.MEAN, check.STD)
    )
    return (batch.float() / 255 - mean) / std


# %% transport | mistake: floats are copied | hint: leave the images as they are
class InBytes:
    def __len__(self):
        return len(check.PICTURES)

    def __getitem__(self, i):
        return check.PICTURES[i].astype(np.float32)


def normalize(batch):
    mean, std = (
        torch.tensor(values).view(3, 1, 1) for values in (check.MEAN, check.STD)
    )
    return (batch / 255 - mean) / std


# %% transport | mistake: bytes go up to 255 | hint: Mean and deviation are those of values from 0 to 1
class InBytes:
    def __len__(self):
        return len(check.PICTURES)

    def __getitem__(self, i):
        return check.PICTURES[i]


def normalize(batch):
    mean, std = (
        torch.tensor(values).view(3, 1, 1) for values in (check.MEAN, check.STD)
    )
    return (batch.float() - mean) / std


# %% transport | mistake: mean and deviation are forgotten | hint: are still to be used
class InBytes:
    def __len__(self):
        return len(check.PICTURES)

    def __getitem__(self, i):
        return check.PICTURES[i]


def normalize(batch):
    return batch.float() / 255


# %% transport | mistake: the last dimension is taken for the channels | hint: must match the size of tensor
class InBytes:
    def __len__(self):
        return len(check.PICTURES)

    def __getitem__(self, i):
        return check.PICTURES[i]


def normalize(batch):
    return (batch.float() / 255 - torch.tensor(check.MEAN)) / torch.tensor(check.STD)


# %% transport | mistake: one mean for all channels | hint: Each channel has a mean of its own
class InBytes:
    def __len__(self):
        return len(check.PICTURES)

    def __getitem__(self, i):
        return check.PICTURES[i]


def normalize(batch):
    return (batch.float() / 255 - check.MEAN[0]) / check.STD[0]


# %% transport | mistake: numbers of eight bytes | hint: torch.float64
class InBytes:
    def __len__(self):
        return len(check.PICTURES)

    def __getitem__(self, i):
        return check.PICTURES[i]


def normalize(batch):
    mean, std = (
        torch.from_numpy(np.array(values)).view(3, 1, 1)
        for values in (check.MEAN, check.STD)
    )
    return (batch / 255 - mean) / std


# %% transport | mistake: numbers are made bytes after they were normalized | hint: line by line
class InBytes:
    def __len__(self):
        return len(check.PICTURES)

    def __getitem__(self, i):
        return (255 * check.InWorkers()[i]).clip(0, 255).astype(np.uint8)


def normalize(batch):
    return batch.float() / 255


# %% transport | mistake: in place | hint: your code raised RuntimeError
class InBytes:
    def __len__(self):
        return len(check.PICTURES)

    def __getitem__(self, i):
        return check.PICTURES[i]


def normalize(batch):
    batch /= 255
    mean, std = (
        torch.tensor(values).view(3, 1, 1) for values in (check.MEAN, check.STD)
    )
    return (batch - mean) / std


# %% transport-explain
# Those that make the batch smaller or that a device does badly: decoding, resizing, and cutting a random part out of a
# large image of any size. Flips and crops keep bytes as bytes, so they may stay in the workers, too. What makes floats,
# such as normalization and changes of color in floats, belongs to the device.
