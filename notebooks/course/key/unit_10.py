"""The key of unit 10, and wrong answers that the checks must reject."""

# %% small
files = {
    "opens, many files": 200,
    "opens, one file": 1,
    "pages, many files": 200,
    "pages, one file": 49,
    "jumps, one file in order": 1,
}


# %% small | mistake: small files share pages | hint: a page belongs to one file
files = files | {"pages, many files": 56}


# %% small | mistake: each sample is a page of its own in the one file, too | hint: A page that two samples share
files = files | {"pages, one file": 200}


# %% small | mistake: each sample is a jump | hint: only the first page
files = files | {"jumps, one file in order": 200}


# %% small | mistake: the one file is opened for each sample | hint: the file stays open
files = files | {"opens, one file": 200}


# %% small-explain
# A page of 4096 bytes holds about four samples, and each of the 49 pages comes from the disk once. So there are at most
# 49 jumps, and 42 here, since some pages happened to follow the one before. Samples of 1 MB have about 245 pages each,
# so at random there is a jump for almost every one. Reading its bytes then takes as long as the jump, so the format
# matters less.


# %% rows
class Rows:
    def __init__(self, file):
        np.lib.format.read_magic(file)
        self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
        self.file, self.start = file, file.tell()
        self.size = self.dtype.itemsize * int(np.prod(self.shape[1:]))

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, i):
        self.file.seek(self.start + i * self.size)
        return np.frombuffer(self.file.read(self.size), self.dtype).reshape(
            self.shape[1:]
        )


# %% rows | mistake: the whole array is read | hint: Read the header only
class Rows:
    def __init__(self, file):
        self.array = np.load(file)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, i):
        return self.array[i]


# %% rows | mistake: the array is read for each row | hint: Remember what the header says
class Rows:
    def __init__(self, file):
        np.lib.format.read_magic(file)
        self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
        self.file = file

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, i):
        self.file.seek(0)
        return np.load(self.file)[i]


# %% rows | mistake: rows begin at the beginning of the file | hint: after a header of 128 bytes
class Rows:
    def __init__(self, file):
        np.lib.format.read_magic(file)
        self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
        self.file = file
        self.size = self.dtype.itemsize * int(np.prod(self.shape[1:]))

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, i):
        self.file.seek(i * self.size)
        return np.frombuffer(self.file.read(self.size), self.dtype).reshape(
            self.shape[1:]
        )


# %% rows | mistake: the size of an element is taken for the size of a row | hint: has the shape (1,)
class Rows:
    def __init__(self, file):
        np.lib.format.read_magic(file)
        self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
        self.file, self.start = file, file.tell()

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, i):
        self.file.seek(self.start + i * self.dtype.itemsize)
        return np.frombuffer(self.file.read(self.dtype.itemsize), self.dtype)


# %% rows | mistake: each row becomes float32 | hint: The header says so
class Rows:
    def __init__(self, file):
        np.lib.format.read_magic(file)
        self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
        self.file, self.start = file, file.tell()
        self.size = self.dtype.itemsize * int(np.prod(self.shape[1:]))

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, i):
        self.file.seek(self.start + i * self.size)
        row = np.frombuffer(self.file.read(self.size), self.dtype).reshape(
            self.shape[1:]
        )
        return row.astype(np.float32)


# %% rows | mistake: the header always has 128 bytes | hint: after a header of 192 bytes
class Rows:
    def __init__(self, file):
        np.lib.format.read_magic(file)
        self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
        self.file = file
        self.size = self.dtype.itemsize * int(np.prod(self.shape[1:]))

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, i):
        self.file.seek(128 + i * self.size)
        return np.frombuffer(self.file.read(self.size), self.dtype).reshape(
            self.shape[1:]
        )


# %% rows-explain
# A whole page of 4096 bytes, about 200 times the row. It is two pages if the row lies across the border of two, and a
# real system may read further pages ahead.


# %% cache
from_disk = {
    "cache of 200 pages, epoch 1": 100,
    "cache of 200 pages, epoch 2": 0,
    "cache of 200 pages, epoch 2, dropped before": 100,
    "cache of 50 pages, epoch 2": 100,
    "cache of 50 pages, epoch 2 backward": 50,
}


# %% cache | mistake: half of the file is in the cache, so half is read | hint: Which page has to leave for it
from_disk = from_disk | {"cache of 50 pages, epoch 2": 50}


# %% cache | mistake: the order does not matter | hint: Epoch 2 begins with page 99
from_disk = from_disk | {"cache of 50 pages, epoch 2 backward": 100}


# %% cache | mistake: there is no cache | hint: What is left to read
from_disk = from_disk | {"cache of 200 pages, epoch 2": 100}


# %% cache | mistake: half of the pages is a text | hint: the answer is a number (pages)
from_disk = from_disk | {"cache of 50 pages, epoch 2 backward": "half"}


# %% cache-explain
# 1000 samples fit into memory. After the first epoch they come from the page cache, so the benchmark measures the
# memory and not the disk. Ten million samples do not fit, and in order not even a part of them is found again. The
# cache uses the free memory of the machine, so workers that need much memory make it smaller.


# %% npz
decompressed = {
    "one array for all, one sample": 100,
    "one array for all, an epoch": 10_000,
    "one array for all, taken out once, an epoch": 100,
    "one array for each sample, one sample": 1,
    "one array for all, mmap_mode='r', one sample": 100,
}


# %% npz | mistake: only the row is decompressed | hint: is the whole array
decompressed = decompressed | {"one array for all, one sample": 1}


# %% npz | mistake: the archive remembers its arrays | hint: Nothing is remembered
decompressed = decompressed | {"one array for all, an epoch": 100}


# %% npz | mistake: a compressed array can be mapped | hint: ignores the argument
decompressed = decompressed | {"one array for all, mmap_mode='r', one sample": 1}


# %% npz | mistake: the whole archive is one piece | hint: is compressed alone
decompressed = decompressed | {"one array for each sample, one sample": 100}


# %% npz-explain
# Each array has a header and entries of its own in the archive. And each is compressed alone: the compressor begins
# with nothing and cannot use what arrays have in common. With 8 workers, keep the array in memory that all processes
# share, with `nbloader.share`. Or store it as `.npy` and map it. Otherwise each worker that takes it out has a copy.


# %% tar
def tar_index(file):
    with tarfile.open(fileobj=file) as archive:
        return {member.name: (member.offset_data, member.size) for member in archive}


def read_member(file, index, name):
    start, size = index[name]
    file.seek(start)
    return file.read(size)


# %% tar | mistake: the offset is that of the header | hint: this is the header
def tar_index(file):
    with tarfile.open(fileobj=file) as archive:
        return {member.name: (member.offset, member.size) for member in archive}


# %% tar | mistake: whole blocks are returned | hint: fills up to blocks
def tar_index(file):
    with tarfile.open(fileobj=file) as archive:
        return {
            member.name: (member.offset_data, -(-member.size // 512) * 512)
            for member in archive
        }


# %% tar | mistake: the index holds the contents | hint: The headers are enough
def tar_index(file):
    with tarfile.open(fileobj=file) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def read_member(file, index, name):
    return index[name]


# %% tar | mistake: names without their folder | hint: by its whole name
def tar_index(file):
    with tarfile.open(fileobj=file) as archive:
        return {
            member.name.split("/")[-1]: (member.offset_data, member.size)
            for member in archive
        }


# %% tar | mistake: the index is not used | hint: so that nothing is searched
def tar_index(file):
    with tarfile.open(fileobj=file) as archive:
        return {member.name: member for member in archive}


def read_member(file, index, name):
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        return archive.extractfile(name).read()


# %% tar | mistake: a list of names | hint: a dict is needed
def tar_index(file):
    with tarfile.open(fileobj=file) as archive:
        return archive.getnames()


# %% tar | mistake: sizes are forgotten | hint: how many bytes has it
def tar_index(file):
    with tarfile.open(fileobj=file) as archive:
        return {member.name: member.offset_data for member in archive}


def read_member(file, index, name):
    file.seek(index[name])
    return file.read(512)


# %% tar-explain
# Nothing. In order, each header comes right before its content, so the reader finds it anyway. Making the index would
# cost one more pass over the headers.


# %% records
def pack(records):
    offsets = np.cumsum([0, *map(len, records)]).astype(np.int64)
    return b"".join([*records, offsets.tobytes(), struct.pack("<q", len(records))])


class Records:
    def __init__(self, file):
        self.file = file
        file.seek(-8, 2)
        (self.length,) = struct.unpack("<q", file.read(8))
        file.seek(-8 - 8 * (self.length + 1), 2)
        self.offsets = np.frombuffer(file.read(8 * (self.length + 1)), np.int64)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        start, end = self.offsets[i : i + 2].tolist()
        self.file.seek(start)
        return self.file.read(end - start)


# %% records | also right: offsets are unsigned integers of NumPy
def pack(records):
    offsets = np.cumsum([0, *map(len, records)]).astype(np.uint32)
    return b"".join([*records, offsets.tobytes(), struct.pack("<q", len(records))])


class Records:
    def __init__(self, file):
        self.file = file
        file.seek(-8, 2)
        (self.length,) = struct.unpack("<q", file.read(8))
        file.seek(-8 - 4 * (self.length + 1), 2)
        self.offsets = np.frombuffer(file.read(4 * (self.length + 1)), np.uint32)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        start, end = self.offsets[i : i + 2]
        self.file.seek(start)
        return self.file.read(end - start)


# %% records | mistake: lengths of two bytes | hint: that your index can hold
def pack(records):
    lengths = np.array([len(record) for record in records]).astype(np.uint16)
    return b"".join([struct.pack("<q", len(records)), lengths.tobytes(), *records])


class Records:
    def __init__(self, file):
        self.file = file
        (self.length,) = struct.unpack("<q", file.read(8))
        lengths = np.frombuffer(file.read(2 * self.length), np.uint16)
        self.offsets = 8 + 2 * self.length + np.cumsum([0, *lengths.tolist()])

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        start, end = self.offsets[i : i + 2].tolist()
        self.file.seek(start)
        return self.file.read(end - start)


# %% records | mistake: a line for each record | hint: an index of 72 bytes is enough
def pack(records):
    return b"\n".join(records)


class Records:
    def __init__(self, file):
        self.records = file.read().split(b"\n")

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        return self.records[i]


# %% records | mistake: offsets count from the first record | hint: From where do your offsets count
def pack(records):
    offsets = np.cumsum([0, *map(len, records)]).astype(np.int64)
    return b"".join([struct.pack("<q", len(records)), offsets.tobytes(), *records])


class Records:
    def __init__(self, file):
        self.file = file
        (self.length,) = struct.unpack("<q", file.read(8))
        self.offsets = np.frombuffer(file.read(8 * (self.length + 1)), np.int64)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        start, end = self.offsets[i : i + 2].tolist()
        self.file.seek(start)
        return self.file.read(end - start)


# %% records | mistake: the end is forgotten | hint: Where does it end
def pack(records):
    starts = 8 * (len(records) + 1) + np.cumsum([0, *map(len, records)])[:-1].astype(
        np.int64
    )
    return b"".join(
        [struct.pack("<q", len(records)), starts.astype(np.int64).tobytes(), *records]
    )


class Records:
    def __init__(self, file):
        self.file = file
        (self.length,) = struct.unpack("<q", file.read(8))
        self.starts = np.frombuffer(file.read(8 * self.length), np.int64)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        self.file.seek(int(self.starts[i]))
        return self.file.read()


# %% records | mistake: records are filled up to the longest | hint: Do not fill them up
def pack(records):
    size = max(map(len, records), default=0)
    lengths = np.array([len(record) for record in records], np.int64)
    head = struct.pack("<qq", len(records), size) + lengths.tobytes()
    return head + b"".join(record.ljust(size, b"\0") for record in records)


class Records:
    def __init__(self, file):
        self.file = file
        length, self.size = struct.unpack("<qq", file.read(16))
        self.lengths = np.frombuffer(file.read(8 * length), np.int64)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        self.file.seek(16 + 8 * len(self.lengths) + i * self.size)
        return self.file.read(int(self.lengths[i]))


# %% records | mistake: each access goes through all lengths | hint: Look up where it begins
def pack(records):
    return b"".join(struct.pack("<q", len(record)) + record for record in records)


class Records:
    def __init__(self, file):
        self.file = file
        end = file.seek(0, 2)
        at = self.length = 0
        while at < end:
            file.seek(at)
            at += 8 + struct.unpack("<q", file.read(8))[0]
            self.length += 1

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        self.file.seek(0)
        for _ in range(i):
            self.file.seek(struct.unpack("<q", self.file.read(8))[0], 1)
        return self.file.read(struct.unpack("<q", self.file.read(8))[0])


# %% records | mistake: the index is pickled with the records in it | hint: how do you find it without reading
def pack(records):
    return pickle.dumps(records)


class Records:
    def __init__(self, file):
        self.records = pickle.load(file)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        return self.records[i]


# %% records-explain
# Behind them. The length of a record is known only when it has come, so the index is complete at the end. A billion
# offsets of 8 bytes are 8 GB. Workers need no copies: they can share one, for example if they map the index from the
# file.


# %% chunks
def write_chunks(samples, per_chunk):
    data, offsets = b"", [0]
    for start in range(0, len(samples), per_chunk):
        data += zlib.compress(b"".join(samples[start : start + per_chunk]))
        offsets.append(len(data))
    return data, offsets


def read_sample(file, offsets, per_chunk, size, i):
    number, at = divmod(i, per_chunk)
    file.seek(offsets[number])
    chunk = zlib.decompress(file.read(offsets[number + 1] - offsets[number]))
    return chunk[at * size : (at + 1) * size]


# %% chunks | mistake: everything behind the chunk is read | hint: where does it end
def read_sample(file, offsets, per_chunk, size, i):
    number, at = divmod(i, per_chunk)
    file.seek(offsets[number])
    chunk = zlib.decompressobj().decompress(file.read())
    return chunk[at * size : (at + 1) * size]


# %% chunks | mistake: the chunk and the place in it are exchanged | hint: instead of sample 1 you return sample 8
def read_sample(file, offsets, per_chunk, size, i):
    at, number = divmod(i, per_chunk)
    file.seek(offsets[number])
    chunk = zlib.decompress(file.read(offsets[number + 1] - offsets[number]))
    return chunk[at * size : (at + 1) * size]


# %% chunks | mistake: the place in the chunk counts from the beginning of the file | hint: has 0 bytes
def read_sample(file, offsets, per_chunk, size, i):
    number = i // per_chunk
    file.seek(offsets[number])
    chunk = zlib.decompress(file.read(offsets[number + 1] - offsets[number]))
    return chunk[i * size : (i + 1) * size]


# %% chunks | mistake: the whole chunk is returned | hint: and should have 200
def read_sample(file, offsets, per_chunk, size, i):
    number = i // per_chunk
    file.seek(offsets[number])
    return zlib.decompress(file.read(offsets[number + 1] - offsets[number]))


# %% chunks | mistake: each sample is compressed alone | hint: there are 8 chunks
def write_chunks(samples, per_chunk):
    parts = [zlib.compress(sample) for sample in samples]
    return b"".join(parts), [0, *itertools.accumulate(map(len, parts))]


# %% chunks | mistake: the last chunk is left out | hint: Is the last one left out
def write_chunks(samples, per_chunk):
    data, offsets = b"", [0]
    for number in range(len(samples) // per_chunk):
        data += zlib.compress(
            b"".join(samples[number * per_chunk : (number + 1) * per_chunk])
        )
        offsets.append(len(data))
    return data, offsets


# %% chunks | mistake: nothing is compressed | hint: Is it compressed
def write_chunks(samples, per_chunk):
    return b"".join(samples), list(range(0, 200 * len(samples), 200 * per_chunk))


# %% amplified
amplification = {
    "in order, nothing kept": 40_960,
    "in order, one chunk kept": 640,
    "every 64th sample, one chunk kept": 640,
    "random order, all chunks kept": 640,
    "one chunk of 640, every 64th sample, nothing kept": 6_400,
}


# %% amplified | mistake: only the sample is decompressed | hint: each access decompresses a chunk
amplification = amplification | {"in order, nothing kept": 640}


# %% amplified | mistake: few samples, few bytes | hint: each in a chunk of its own
amplification = amplification | {"every 64th sample, one chunk kept": 10}


# %% amplified | mistake: random order always costs a chunk for each sample | hint: when it is needed first
amplification = amplification | {"random order, all chunks kept": 40_960}


# %% amplified | mistake: one chunk is decompressed once | hint: decompresses the only chunk
amplification = amplification | {
    "one chunk of 640, every 64th sample, nothing kept": 640
}


# %% chunks-explain
# For reading in order, large chunks: they compress better, and if the chunk is kept, each sample is decompressed once.
# The limit is the memory for a chunk. For single samples at random, small chunks, even of one sample, since the whole
# chunk is decompressed for one sample. The price here was a file of 295,149 bytes instead of 254,978.


# %% order
def chunk_order(length, per_chunk, pool, rng):
    chunks = [
        list(range(start, min(start + per_chunk, length)))
        for start in range(0, length, per_chunk)
    ]
    rng.shuffle(chunks)
    made = []
    for first in range(0, len(chunks), pool):
        samples = list(itertools.chain(*chunks[first : first + pool]))
        rng.shuffle(samples)
        made += samples
    return made


# %% order | mistake: all samples are shuffled | hint: Use up the chunks that are open first
def chunk_order(length, per_chunk, pool, rng):
    return rng.sample(range(length), length)


# %% order | mistake: chunks stay in their order | hint: Shuffle the chunks
def chunk_order(length, per_chunk, pool, rng):
    made = []
    for first in range(0, length, per_chunk * pool):
        samples = list(range(first, min(first + per_chunk * pool, length)))
        rng.shuffle(samples)
        made += samples
    return made


# %% order | mistake: the samples of a chunk stay in their order | hint: Shuffle in a chunk, too
def chunk_order(length, per_chunk, pool, rng):
    chunks = [
        range(start, min(start + per_chunk, length))
        for start in range(0, length, per_chunk)
    ]
    rng.shuffle(chunks)
    return list(itertools.chain(*chunks))


# %% order | mistake: the pool is not used | hint: Mix the samples
def chunk_order(length, per_chunk, pool, rng):
    chunks = [
        rng.sample(range(s, min(s + per_chunk, length)), min(per_chunk, length - s))
        for s in range(0, length, per_chunk)
    ]
    rng.shuffle(chunks)
    return list(itertools.chain(*chunks))


# %% order | mistake: neighbors are always open together | hint: Which ones do you combine
def chunk_order(length, per_chunk, pool, rng):
    groups = [
        list(range(s, min(s + per_chunk * pool, length)))
        for s in range(0, length, per_chunk * pool)
    ]
    rng.shuffle(groups)
    for group in groups:
        rng.shuffle(group)
    return list(itertools.chain(*groups))


# %% order | mistake: the last chunk is not full | hint: there is no such sample
def chunk_order(length, per_chunk, pool, rng):
    chunks = [
        list(range(start, start + per_chunk)) for start in range(0, length, per_chunk)
    ]
    rng.shuffle(chunks)
    made = []
    for first in range(0, len(chunks), pool):
        samples = list(itertools.chain(*chunks[first : first + pool]))
        rng.shuffle(samples)
        made += samples
    return made


# %% order | mistake: numbers of the global generator | hint: Draw from `rng` only
def chunk_order(length, per_chunk, pool, rng):
    chunks = [
        list(range(start, min(start + per_chunk, length)))
        for start in range(0, length, per_chunk)
    ]
    random.shuffle(chunks)
    made = []
    for first in range(0, len(chunks), pool):
        samples = list(itertools.chain(*chunks[first : first + pool]))
        random.shuffle(samples)
        made += samples
    return made


# %% order | mistake: the last group is forgotten | hint: samples never come
def chunk_order(length, per_chunk, pool, rng):
    chunks = [
        list(range(start, min(start + per_chunk, length)))
        for start in range(0, length, per_chunk)
    ]
    rng.shuffle(chunks)
    made = []
    for group in range(len(chunks) // pool):
        samples = list(itertools.chain(*chunks[group * pool : (group + 1) * pool]))
        rng.shuffle(samples)
        made += samples
    return made


# %% order-explain
# Chunks come in random order, so chunks of cats and of dogs alternate by chance. But a chunk has only one kind, so how
# well a batch is mixed depends on how many chunks are open. A larger pool mixes better, and costs the memory of `pool`
# decompressed chunks. Give each chunk to one worker as a whole, or several workers decompress the same one.


# %% decode
decodes = {
    "__getitem__ runs in": "a worker",
    "collate_fn runs in": "a worker",
    "images decoded in 3 epochs, in __getitem__": 96,
    "images decoded in 3 epochs, if the writer has decoded them": 0,
    "bytes of a batch, as uint8": 24_576,
    "bytes of a batch, as float32": 98_304,
}


# %% decode | mistake: the loop combines samples | hint: so that one batch is sent
decodes = decodes | {"collate_fn runs in": "the loop"}


# %% decode | mistake: decoded images are remembered | hint: Does anything remember them
decodes = decodes | {"images decoded in 3 epochs, in __getitem__": 32}


# %% decode | mistake: float32 has one byte | hint: with four bytes each
decodes = decodes | {"bytes of a batch, as float32": 24_576}


# %% decode | mistake: the writer decodes during the training | hint: the file holds the decoded images
decodes = decodes | {"images decoded in 3 epochs, if the writer has decoded them": 32}


# %% decode-explain
# Resizing to a fixed size is the same in each epoch, so the writer does it. The writer also decodes if the bytes are
# affordable, and a worker does otherwise. A worker does the random crop, too, which differs each time. The device
# converts to `float32` and normalizes, since this makes four times the bytes. A writer that decodes pays about 11 times
# the bytes here: 24,576 instead of 2,267 for 8 images.


# %% choose
best = {
    "A": "one .npy",
    "B": "records",
    "C": "tar in order",
    "D": "chunks",
    "E": "many files",
}


# %% choose | mistake: compression always helps | hint: What needs no open and no decompression
best = best | {"A": "chunks"}


# %% choose | mistake: photos are filled up to one length | hint: What is read for a photo of 1000 bytes
best = best | {"B": "one .npy"}


# %% choose | mistake: a tar file for any order | hint: this format is read in order only
best = best | {"B": "tar in order"}


# %% choose | mistake: a request for each photo | hint: read in large blocks
best = best | {"C": "many files"}


# %% choose | mistake: bytes that need not be read | hint: Which format has few bytes
best = best | {"D": "one .npy"}


# %% choose | mistake: one file is always better | hint: What must be written again
best = best | {"E": "records"}


# %% choose | mistake: a format that was not compared | hint: is none of
best = best | {"E": "HDF5"}


# %% choose-explain
# In A and B two things count. Opens and jumps decide against many files. The CPU decides against chunks, since nearly
# each sample decompresses a whole chunk. In B, bytes decide against `one .npy`, where each photo is filled up to 60 kB.
# In C it is the number of reads, which is neither of the two measures. In D it is the bytes on the network. In E it is
# the bytes that are written.
