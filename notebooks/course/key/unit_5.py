"""The key of unit 5, and wrong answers that the checks must reject."""


# %% bytes
def batch_bytes(batch_size, shape, dtype):
    return batch_size * np.prod(shape, dtype=int) * dtype().nbytes


# %% bytes | mistake: one sample | hint: is the size of one sample
def batch_bytes(batch_size, shape, dtype):
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


# %% bytes | mistake: elements | hint: How many bytes has each
def batch_bytes(batch_size, shape, dtype):
    return batch_size * int(np.prod(shape))


# %% bytes | mistake: bits | hint: these are bits
def batch_bytes(batch_size, shape, dtype):
    return batch_size * int(np.prod(shape)) * np.dtype(dtype).itemsize * 8


# %% views
kinds = {
    "a[2]": "view",
    "a[::2]": "view",
    "a.T": "view",
    "a.reshape(48)": "view",
    "a.T.reshape(48)": "copy",
    "a[[0, 1, 2]]": "copy",
    "a.astype(np.float16)": "copy",
    "np.stack([a, a])": "copy",
    "torch.from_numpy(a)": "view",
    "pickle.loads(pickle.dumps(a))": "copy",
}


# %% views | mistake: every indexing is a view | hint: a list of indices may name any rows
kinds = kinds | {"a[[0, 1, 2]]": "view"}


# %% views | mistake: transposing moves the elements | hint: read in another order
kinds = kinds | {"a.T": "copy"}


# %% views | mistake: reshape is always a view | hint: no single step describes it
kinds = kinds | {"a.T.reshape(48)": "view"}


# %% views-explain
# `a.reshape(48)` has the elements in the order in which they lie in memory, so a view is enough. `a.T.reshape(48)` goes
# through `a` column by column. No single step from one element to the next describes this order, so NumPy copies the
# elements.


# %% copies
copies = {"pickle": 5, "shared_memory": 1}


# %% copies | mistake: shared memory needs no copy at all | hint: collates into the shared memory
copies = {"pickle": 5, "shared_memory": 0}


# %% copies | mistake: the system's copies are forgotten | hint: Count the arrows
copies = {"pickle": 3, "shared_memory": 1}


# %% copies-explain
# A small message is sent: the number of the batch, where it lies in the shared memory, and the shape and type of each
# array. Times or an error may be added. Its size does not depend on the number of bytes of the batch.


# %% pack
def pack(arrays, memory):
    header, offset = [], 0
    for array in arrays:
        target = np.ndarray(array.shape, array.dtype, buffer=memory, offset=offset)
        target[...] = array
        header.append((offset, array.shape, array.dtype))
        offset = (offset + array.nbytes + 63) // 64 * 64
    return header


def unpack(header, memory):
    return [
        np.ndarray(shape, dtype, buffer=memory, offset=offset)
        for offset, shape, dtype in header
    ]


# %% pack | mistake: unpacks copies | hint: is a copy
def pack(arrays, memory):
    header, offset = [], 0
    for array in arrays:
        np.ndarray(array.shape, array.dtype, buffer=memory, offset=offset)[...] = array
        header.append((offset, array.shape, array.dtype))
        offset = (offset + array.nbytes + 63) // 64 * 64
    return header


def unpack(header, memory):
    return [
        np.ndarray(shape, dtype, buffer=memory, offset=offset).copy()
        for offset, shape, dtype in header
    ]


# %% pack | mistake: the arrays are in the header | hint: data belongs only in the memory
def pack(arrays, memory):
    return [(0, array) for array in arrays]


def unpack(header, memory):
    return [array for _, array in header]


# %% pack | mistake: elements instead of bytes | hint: overlaps
def pack(arrays, memory):
    header, offset = [], 0
    for array in arrays:
        np.ndarray(array.shape, array.dtype, buffer=memory, offset=offset)[...] = array
        header.append((offset, array.shape, array.dtype))
        offset = (offset + array.size + 63) // 64 * 64
    return header


def unpack(header, memory):
    return [
        np.ndarray(shape, dtype, buffer=memory, offset=offset)
        for offset, shape, dtype in header
    ]


# %% pack | mistake: from the end of the memory to its beginning | hint: should come behind the array before it
def pack(arrays, memory):
    header, end = [], len(memory)
    for array in arrays:
        offset = end = (end - array.nbytes) // 64 * 64
        np.ndarray(array.shape, array.dtype, buffer=memory, offset=offset)[...] = array
        header.append((offset, array.shape, array.dtype))
    return header


def unpack(header, memory):
    return [
        np.ndarray(shape, dtype, buffer=memory, offset=offset)
        for offset, shape, dtype in header
    ]


# %% pack | mistake: not aligned | hint: Round the offset up
def pack(arrays, memory):
    header, offset = [], 0
    for array in arrays:
        np.ndarray(array.shape, array.dtype, buffer=memory, offset=offset)[...] = array
        header.append((offset, array.shape, array.dtype))
        offset += array.nbytes
    return header


def unpack(header, memory):
    return [
        np.ndarray(shape, dtype, buffer=memory, offset=offset)
        for offset, shape, dtype in header
    ]


# %% pack | mistake: the bytes of a transposed array in its own order | hint: Think of the transposed one
def pack(arrays, memory):
    header, offset = [], 0
    for array in arrays:
        memory[offset : offset + array.nbytes] = array.tobytes(order="A")
        header.append((offset, array.shape, array.dtype))
        offset = (offset + array.nbytes + 63) // 64 * 64
    return header


def unpack(header, memory):
    return [
        np.ndarray(shape, dtype, buffer=memory, offset=offset)
        for offset, shape, dtype in header
    ]


# %% faults
page_faults = {"new": 16 * 2**20 // mmap.PAGESIZE, "again": 0}


# %% faults | mistake: one for each byte | hint: A whole page comes with each fault
page_faults = {"new": 16 * 2**20, "again": 0}


# %% faults | mistake: memory is there when it is mapped | hint: does not give 16 MiB at once
page_faults = {"new": 1, "again": 0}


# %% faults | mistake: the same each time | hint: the pages are there now
page_faults = {"new": 16 * 2**20 // mmap.PAGESIZE, "again": 16 * 2**20 // mmap.PAGESIZE}


# %% faults-explain
# Each page of new memory costs a page fault when it is first written. The system must find the page and fill it with
# zeros. 16 MiB cost about 4,097 page faults here when they were new, and none when they were used again. So a loader
# keeps memory and uses it for later batches.


# %% pool
class Pool:
    def __init__(self):
        self.free = []

    def new(self, size):
        return mmap.mmap(-1, size)

    def lend(self, shape):
        memory = self.free.pop() if self.free else self.new(int(np.prod(shape)))
        first = np.frombuffer(memory, np.uint8)
        weakref.finalize(first, self.free.append, memory)
        return first.reshape(shape)


# %% pool | mistake: watches a view | hint: Which array do all views keep
class Pool(Pool):
    def lend(self, shape):
        memory = self.free.pop() if self.free else self.new(int(np.prod(shape)))
        array = np.frombuffer(memory, np.uint8).reshape(shape)
        weakref.finalize(array, self.free.append, memory)
        return array


# %% pool | mistake: the list has another name | hint: so that the check can count it
class Pool:
    def __init__(self):
        self.unused = []

    def lend(self, shape):
        memory = (
            self.unused.pop() if self.unused else mmap.mmap(-1, int(np.prod(shape)))
        )
        first = np.frombuffer(memory, np.uint8)
        weakref.finalize(first, self.unused.append, memory)
        return first.reshape(shape)


# %% pool | mistake: always new memory | hint: its memory is not used again
class Pool(Pool):
    def lend(self, shape):
        return np.frombuffer(self.new(int(np.prod(shape))), np.uint8).reshape(shape)


# %% pool | mistake: the same memory for all | hint: two arrays that are in use
class Pool(Pool):
    def lend(self, shape):
        if not self.free:
            self.free.append(self.new(int(np.prod(shape))))
        return np.frombuffer(self.free[0], np.uint8).reshape(shape)


# %% pool | mistake: what came back first | hint: Take the one that came back last
class Pool(Pool):
    def lend(self, shape):
        memory = self.free.pop(0) if self.free else self.new(int(np.prod(shape)))
        first = np.frombuffer(memory, np.uint8)
        weakref.finalize(first, self.free.append, memory)
        return first.reshape(shape)


# %% share-task
class Shared:
    def __init__(self, annotations):
        self.annotations = nbloader.share(annotations)

    def __len__(self):
        return len(self.annotations)

    def __getitem__(self, i):
        return self.annotations[i]["label"]


# %% share-task | mistake: a tuple instead of a list | hint: each worker still has its copy
class Shared:
    def __init__(self, annotations):
        self.annotations = tuple(annotations)

    def __len__(self):
        return len(self.annotations)

    def __getitem__(self, i):
        return self.annotations[i]["label"]


# %% share-task | mistake: the whole annotation as a sample | hint: It should be the label of annotation
class Shared:
    def __init__(self, annotations):
        self.annotations = nbloader.share(annotations)

    def __len__(self):
        return len(self.annotations)

    def __getitem__(self, i):
        return self.annotations[i]


# %% share-explain
# Each access unpickles one item, which takes some microseconds, and returns a new object. Arrays are better if all
# items have the same numeric fields, such as a label and a box. Then an access reads some bytes without pickle, the
# memory is smaller, and whole columns can be computed with.
