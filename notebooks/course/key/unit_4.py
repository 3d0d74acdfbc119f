"""The key of unit 4, and wrong answers that the checks must reject."""

# %% shared
entries = {"no workers": 40, "threads": 40, "processes": 0}


# %% shared | mistake: processes write into the same list | hint: a list of its own
entries = {"no workers": 40, "threads": 40, "processes": 40}


# %% shared | mistake: threads have copies, too | hint: use the same object
entries = {"no workers": 40, "threads": 0, "processes": 0}


# %% shared-explain
# They are in the lists of the worker processes. Each process has its own copy of the dataset, and appends to the list
# of this copy. Together these lists have 40 entries, and they are gone when the workers end.


# %% tally
class Tally:
    def __init__(self, step):
        self.step, self.value, self.lock = step, 0, threading.Lock()

    def add(self):
        with self.lock:
            self.value = self.step(self.value)


# %% tally | mistake: no lock | hint: read the old value before one wrote
class Tally:
    def __init__(self, step):
        self.step, self.value = step, 0

    def add(self):
        self.value = self.step(self.value)


# %% tally | mistake: a new lock for each call | hint: which all threads share
class Tally:
    def __init__(self, step):
        self.step, self.value = step, 0

    def add(self):
        with threading.Lock():
            self.value = self.step(self.value)


# %% tally | mistake: only the writing is locked | hint: Reading, step() and writing
class Tally:
    def __init__(self, step):
        self.step, self.value, self.lock = step, 0, threading.Lock()

    def add(self):
        new = self.step(self.value)
        with self.lock:
            self.value = new


# %% parallel
at_once = {
    "threads that compute": 1,
    "processes that compute": 2,
    "threads that wait": 4,
    "processes that wait": 4,
}


# %% parallel | mistake: threads use all cores | hint: Who holds the interpreter lock
at_once = {
    "threads that compute": 2,
    "processes that compute": 2,
    "threads that wait": 4,
    "processes that wait": 4,
}


# %% parallel | mistake: every process computes | hint: a core computes for one of them
at_once = {
    "threads that compute": 1,
    "processes that compute": 4,
    "threads that wait": 4,
    "processes that wait": 4,
}


# %% parallel | mistake: the lock forbids waiting together | hint: holds neither the lock nor a core
at_once = {
    "threads that compute": 1,
    "processes that compute": 2,
    "threads that wait": 1,
    "processes that wait": 4,
}


# %% lock-explain
# Threads that compute need the interpreter lock, and only one thread has it at a time. So they take turns, and the work
# of both takes as long as in one thread. A thread that waits gives the lock back. So waits overlap, and many threads
# can wait at the same time.


# %% rate
def rate(workers, waiting, computing, cores, lock):
    limits = [workers / (waiting + computing)]
    if computing:
        limits.append((1 if lock else cores) / computing)
    return min(limits)


# %% rate | mistake: the lock is forgotten | hint: only one at a time
def rate(workers, waiting, computing, cores, lock):
    limits = [workers / (waiting + computing)]
    if computing:
        limits.append(cores / computing)
    return min(limits)


# %% rate | mistake: samples that wait need a core | hint: 4 workers make 100 per second each
def rate(workers, waiting, computing, cores, lock):
    return min(workers, 1 if lock else cores) / (waiting + computing)


# %% rate | mistake: a worker waits and computes at the same time | hint: one worker waits and computes one after
def rate(workers, waiting, computing, cores, lock):
    waits = workers / waiting if waiting else float("inf")
    computes = (1 if lock else cores) / computing if computing else float("inf")
    return min(waits, computes)


# %% rate | mistake: division by zero | hint: ZeroDivisionError
def rate(workers, waiting, computing, cores, lock):
    return min(workers / (waiting + computing), (1 if lock else cores) / computing)


# %% choose
choice = {
    "downloads images, and waits most of the time": "thread",
    "tokenizes text in pure Python": "process",
    "decodes images with a library that gives the lock back": "thread",
    "augments images with Python loops over their pixels": "process",
    "calls a C library that keeps its state in a global variable": "process",
    "waits for a database, and looks things up in a dict of 20 GB": "thread",
}


# %% choose | mistake: processes for everything | hint: does not hold the lock
choice = dict.fromkeys(choice, "process")


# %% choose | mistake: threads for everything | hint: pure Python holds the lock
choice = dict.fromkeys(choice, "thread")


# %% choose | mistake: the global variable | hint: overwrite each other's state
choice = choice | {
    "calls a C library that keeps its state in a global variable": "thread"
}


# %% travel
travels = {
    "a NumPy array": True,
    "a lambda": True,
    "a class of this notebook": True,
    "an open binary file": False,
    "a database connection": False,
    "a generator": False,
}


# %% travel | mistake: as with Python's own pickle | hint: cloudpickle sends the code
travels = travels | {"a lambda": False, "a class of this notebook": False}


# %% travel | mistake: a file is only a name | hint: a number that the system knows
travels = travels | {"an open binary file": True}


# %% travel-explain
# Their value is not only bytes of their own. It belongs to this process: a file that the operating system has opened
# here, a connection of a library, or a function call that is interrupted halfway. Another process could not continue
# these with a copy of the bytes, so it has to open or create them itself.


# %% records
class Records:
    def __init__(self, path, open_file=open):
        self.path, self.open_file, self.file = path, open_file, None

    def __getitem__(self, i):
        if self.file is None:
            self.file = self.open_file(self.path, "rb")
        self.file.seek(8 * i)
        return self.file.read(8)

    def __getstate__(self):
        return self.__dict__ | {"file": None}


# %% records | mistake: opened in __init__ | hint: Open it on first use
class Records:
    def __init__(self, path, open_file=open):
        self.file = open_file(path, "rb")

    def __getitem__(self, i):
        self.file.seek(8 * i)
        return self.file.read(8)


# %% records | mistake: opened for each sample | hint: Keep it open
class Records:
    def __init__(self, path, open_file=open):
        self.path, self.open_file = path, open_file

    def __getitem__(self, i):
        with self.open_file(self.path, "rb") as file:
            file.seek(8 * i)
            return file.read(8)


# %% records | mistake: cannot be sent after it was used | hint: after the notebook has read a sample, it cannot be sent
class Records:
    def __init__(self, path, open_file=open):
        self.path, self.open_file, self.file = path, open_file, None

    def __getitem__(self, i):
        if self.file is None:
            self.file = self.open_file(self.path, "rb")
        self.file.seek(8 * i)
        return self.file.read(8)


# %% records | mistake: the whole file is read and sent | hint: the contents of the file
class Records:
    def __init__(self, path, open_file=open):
        self.data = path.read_bytes()

    def __getitem__(self, i):
        return self.data[8 * i : 8 * i + 8]


# %% records | mistake: all of it is read for each sample | hint: seek, then read 8
class Records:
    def __init__(self, path, open_file=open):
        self.path, self.open_file, self.file = path, open_file, None

    def __getitem__(self, i):
        if self.file is None:
            self.file = self.open_file(self.path, "rb")
        self.file.seek(0)
        return self.file.read()[8 * i : 8 * i + 8]

    def __getstate__(self):
        return self.__dict__ | {"file": None}


# %% records | mistake: the dataset itself forgets its file when it is sent | hint: Change a copy of
class Records:
    def __init__(self, path, open_file=open):
        self.path, self.open_file, self.file = path, open_file, None

    def __getitem__(self, i):
        if self.file is None:
            self.file = self.open_file(self.path, "rb")
        self.file.seek(8 * i)
        return self.file.read(8)

    def __getstate__(self):
        state = self.__dict__
        state["file"] = None
        return state


# %% has-lock
def has_lock(sys):
    return getattr(sys, "_is_gil_enabled", lambda: True)()


# %% has-lock | mistake: older versions are forgotten | hint: What is true of all older versions
def has_lock(sys):
    return sys._is_gil_enabled()


# %% has-lock | mistake: the version decides | hint: an ordinary build
def has_lock(sys):
    return sys.version_info < (3, 13)


# %% has-lock | mistake: the build decides | hint: the lock is off
def has_lock(sys):
    return not hasattr(sys, "_is_gil_enabled") or "t" not in getattr(
        sys, "abiflags", ""
    )
