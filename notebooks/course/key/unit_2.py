"""The key of unit 2, and wrong answers that the checks must reject."""


# %% buffer
class ReorderBuffer:
    def __init__(self):
        self.waiting, self.next = {}, 0

    def put(self, number, batch):
        self.waiting[number] = batch

    def ready(self):
        found = []
        while self.next in self.waiting:
            found.append(self.waiting.pop(self.next))
            self.next += 1
        return found


# %% buffer | mistake: batches in the order of arrival | hint: is missing: there is a gap
class ReorderBuffer:
    def __init__(self):
        self.waiting = []

    def put(self, number, batch):
        self.waiting.append(batch)

    def ready(self):
        found, self.waiting = self.waiting, []
        return found


# %% buffer | mistake: sorts what has arrived, and does not look for gaps | hint: is missing: there is a gap
class ReorderBuffer:
    def __init__(self):
        self.waiting = {}

    def put(self, number, batch):
        self.waiting[number] = batch

    def ready(self):
        return [self.waiting.pop(number) for number in sorted(self.waiting)]


# %% buffer | mistake: one batch at a time | hint: several others ready at once
class ReorderBuffer:
    def __init__(self):
        self.waiting, self.next = {}, 0

    def put(self, number, batch):
        self.waiting[number] = batch

    def ready(self):
        if self.next not in self.waiting:
            return []
        self.next += 1
        return [self.waiting.pop(self.next - 1)]


# %% buffer | mistake: nothing is forgotten, and all is returned again | hint: delivered once, not twice
class ReorderBuffer:
    def __init__(self):
        self.waiting = {}

    def put(self, number, batch):
        self.waiting[number] = batch

    def ready(self):
        found = []
        while len(found) in self.waiting:
            found.append(self.waiting[len(found)])
        return found


# %% buffer | mistake: batches that were returned stay in the dict | hint: still holds the batches
class ReorderBuffer:
    def __init__(self):
        self.waiting, self.next = {}, 0

    def put(self, number, batch):
        self.waiting[number] = batch

    def ready(self):
        found = []
        while self.next in self.waiting:
            found.append(self.waiting[self.next])
            self.next += 1
        return found


# %% worker
def work(dataset, collate, tasks, results):
    while (task := tasks.get()) is not None:
        number, indices = task
        try:
            results.put((number, collate([dataset[i] for i in indices]), None))
        except Exception as error:  # noqa: BLE001 - whatever the dataset raises, the loop should raise
            results.put((number, None, error))


# %% worker | mistake: None is taken for a task | hint: None is no task
def work(dataset, collate, tasks, results):
    while True:
        number, indices = tasks.get()
        try:
            results.put((number, collate([dataset[i] for i in indices]), None))
        except Exception as error:  # noqa: BLE001
            results.put((number, None, error))


# %% worker | mistake: an error ends the worker | hint: ended the worker
def work(dataset, collate, tasks, results):
    while (task := tasks.get()) is not None:
        number, indices = task
        results.put((number, collate([dataset[i] for i in indices]), None))


# %% worker | mistake: samples are not collated | hint: call collate on it
def work(dataset, collate, tasks, results):
    while (task := tasks.get()) is not None:
        number, indices = task
        try:
            results.put((number, [dataset[i] for i in indices], None))
        except Exception as error:  # noqa: BLE001
            results.put((number, None, error))


# %% worker | mistake: a broken batch is skipped silently | hint: one result for each
def work(dataset, collate, tasks, results):
    while (task := tasks.get()) is not None:
        number, indices = task
        try:
            results.put((number, collate([dataset[i] for i in indices]), None))
        except Exception:  # noqa: BLE001
            continue


# %% worker | mistake: the text of the error instead of the exception | hint: send the exception itself
def work(dataset, collate, tasks, results):
    while (task := tasks.get()) is not None:
        number, indices = task
        try:
            results.put((number, collate([dataset[i] for i in indices]), None))
        except Exception as error:  # noqa: BLE001
            results.put((number, None, str(error)))


# %% worker | mistake: errors of one type only | hint: you do not know what a dataset raises
def work(dataset, collate, tasks, results):
    while (task := tasks.get()) is not None:
        number, indices = task
        try:
            results.put((number, collate([dataset[i] for i in indices]), None))
        except OSError as error:
            results.put((number, None, error))


# %% epoch
class EpochLoader:
    def __init__(
        self,
        dataset,
        batch_size,
        *,
        num_workers=2,
        window=4,
        collate=list,
        backend=None,
    ):
        self.dataset, self.batch_size, self.collate = dataset, batch_size, collate
        self.num_workers, self.window = num_workers, window
        self.backend = backend or Threads()

    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        for _ in range(self.num_workers):
            self.backend.start(work, self.dataset, self.collate, tasks, results)
        todo = enumerate(indices_of(len(self.dataset), self.batch_size))
        buffer, on_path = ReorderBuffer(), 0
        for task in itertools.islice(todo, self.window):
            tasks.put(task)
            on_path += 1
        while on_path:
            number, batch, _error = results.get()
            buffer.put(number, batch)
            for ready in buffer.ready():
                yield ready
                on_path -= 1
                for task in itertools.islice(todo, 1):
                    tasks.put(task)
                    on_path += 1


# %% epoch | mistake: everything is sent at once | hint: would fill the memory
class EpochLoader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        for _ in range(self.num_workers):
            self.backend.start(work, self.dataset, self.collate, tasks, results)
        todo = list(enumerate(indices_of(len(self.dataset), self.batch_size)))
        for task in todo:
            tasks.put(task)
        buffer = ReorderBuffer()
        for _ in todo:
            number, batch, _error = results.get()
            buffer.put(number, batch)
            yield from buffer.ready()


# %% epoch | mistake: one batch at a time | hint: the other workers are idle
class EpochLoader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        for _ in range(self.num_workers):
            self.backend.start(work, self.dataset, self.collate, tasks, results)
        for task in enumerate(indices_of(len(self.dataset), self.batch_size)):
            tasks.put(task)
            _number, batch, _error = results.get()
            yield batch


# %% epoch | mistake: batches in the order in which they are finished | hint: the loop gets them in the order
class EpochLoader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        for _ in range(self.num_workers):
            self.backend.start(work, self.dataset, self.collate, tasks, results)
        todo = enumerate(indices_of(len(self.dataset), self.batch_size))
        on_path = 0
        for task in itertools.islice(todo, self.window):
            tasks.put(task)
            on_path += 1
        while on_path:
            yield results.get()[1]
            on_path -= 1
            for task in itertools.islice(todo, 1):
                tasks.put(task)
                on_path += 1


# %% epoch | mistake: it waits for as many results as it sends later | hint: loses those that were still on the path
class EpochLoader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        for _ in range(self.num_workers):
            self.backend.start(work, self.dataset, self.collate, tasks, results)
        todo = list(enumerate(indices_of(len(self.dataset), self.batch_size)))
        first, later = todo[: self.window], iter(todo[self.window :])
        for task in first:
            tasks.put(task)
        buffer = ReorderBuffer()
        for _ in todo[self.window :]:
            number, batch, _error = results.get()
            buffer.put(number, batch)
            for ready in buffer.ready():
                yield ready
                for task in itertools.islice(later, 1):
                    tasks.put(task)


# %% epoch | mistake: one batch too many | hint: would fill the memory
class EpochLoader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        for _ in range(self.num_workers):
            self.backend.start(work, self.dataset, self.collate, tasks, results)
        todo = enumerate(indices_of(len(self.dataset), self.batch_size))
        buffer, on_path = ReorderBuffer(), 0
        for task in itertools.islice(todo, self.window + 1):
            tasks.put(task)
            on_path += 1
        while on_path:
            number, batch, _error = results.get()
            buffer.put(number, batch)
            for ready in buffer.ready():
                yield ready
                on_path -= 1
                for task in itertools.islice(todo, 1):
                    tasks.put(task)
                    on_path += 1


# %% epoch | mistake: the next task is sent before the batch is yielded | hint: counts until it is yielded
class EpochLoader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        for _ in range(self.num_workers):
            self.backend.start(work, self.dataset, self.collate, tasks, results)
        todo = enumerate(indices_of(len(self.dataset), self.batch_size))
        buffer, on_path = ReorderBuffer(), 0
        for task in itertools.islice(todo, self.window):
            tasks.put(task)
            on_path += 1
        while on_path:
            number, batch, _error = results.get()
            buffer.put(number, batch)
            for ready in buffer.ready():
                on_path -= 1
                for task in itertools.islice(todo, 1):
                    tasks.put(task)
                    on_path += 1
                yield ready


# %% epoch | mistake: one worker, whatever the number is | hint: num_workers is 3, and you started 1
class EpochLoader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        for _ in range(1):
            self.backend.start(work, self.dataset, self.collate, tasks, results)
        todo = enumerate(indices_of(len(self.dataset), self.batch_size))
        buffer, on_path = ReorderBuffer(), 0
        for task in itertools.islice(todo, self.window):
            tasks.put(task)
            on_path += 1
        while on_path:
            number, batch, _error = results.get()
            buffer.put(number, batch)
            for ready in buffer.ready():
                yield ready
                on_path -= 1
                for task in itertools.islice(todo, 1):
                    tasks.put(task)
                    on_path += 1


# %% loader
class Loader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        workers = [
            self.backend.start(work, self.dataset, self.collate, tasks, results)
            for _ in range(self.num_workers)
        ]
        try:
            todo = enumerate(indices_of(len(self.dataset), self.batch_size))
            buffer, on_path = ReorderBuffer(), 0
            for task in itertools.islice(todo, self.window):
                tasks.put(task)
                on_path += 1
            while on_path:
                number, batch, error = results.get()
                buffer.put(number, (batch, error))
                for ready, failure in buffer.ready():
                    if failure is not None:
                        raise failure
                    yield ready
                    on_path -= 1
                    for task in itertools.islice(todo, 1):
                        tasks.put(task)
                        on_path += 1
        finally:
            for _ in workers:
                tasks.put(None)
            for worker in workers:
                worker.join()


# %% loader | mistake: step 1 again, whose workers never end | hint: None was sent 0 of
class Loader(EpochLoader):
    pass


# %% loader | mistake: the workers end after the last batch only | hint: when the loop is left early
class Loader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        workers = [
            self.backend.start(work, self.dataset, self.collate, tasks, results)
            for _ in range(self.num_workers)
        ]
        todo = enumerate(indices_of(len(self.dataset), self.batch_size))
        buffer, on_path = ReorderBuffer(), 0
        for task in itertools.islice(todo, self.window):
            tasks.put(task)
            on_path += 1
        while on_path:
            number, batch, _error = results.get()
            buffer.put(number, batch)
            for ready in buffer.ready():
                yield ready
                on_path -= 1
                for task in itertools.islice(todo, 1):
                    tasks.put(task)
                    on_path += 1
        for _ in workers:
            tasks.put(None)
        for worker in workers:
            worker.join()


# %% loader | mistake: an error is raised as soon as it arrives | hint: comes at another place each time
class Loader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        workers = [
            self.backend.start(work, self.dataset, self.collate, tasks, results)
            for _ in range(self.num_workers)
        ]
        try:
            todo = enumerate(indices_of(len(self.dataset), self.batch_size))
            buffer, on_path = ReorderBuffer(), 0
            for task in itertools.islice(todo, self.window):
                tasks.put(task)
                on_path += 1
            while on_path:
                number, batch, error = results.get()
                if error is not None:
                    raise error
                buffer.put(number, batch)
                for ready in buffer.ready():
                    yield ready
                    on_path -= 1
                    for task in itertools.islice(todo, 1):
                        tasks.put(task)
                        on_path += 1
        finally:
            for _ in workers:
                tasks.put(None)
            for worker in workers:
                worker.join()


# %% loader | mistake: an error is never raised | hint: your loader raised nothing
class Loader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        workers = [
            self.backend.start(work, self.dataset, self.collate, tasks, results)
            for _ in range(self.num_workers)
        ]
        try:
            todo = enumerate(indices_of(len(self.dataset), self.batch_size))
            buffer, on_path = ReorderBuffer(), 0
            for task in itertools.islice(todo, self.window):
                tasks.put(task)
                on_path += 1
            while on_path:
                number, batch, _error = results.get()
                buffer.put(number, batch)
                for ready in buffer.ready():
                    yield ready
                    on_path -= 1
                    for task in itertools.islice(todo, 1):
                        tasks.put(task)
                        on_path += 1
        finally:
            for _ in workers:
                tasks.put(None)
            for worker in workers:
                worker.join()


# %% loader | mistake: a batch of None counts as one that has not arrived | hint: How does your buffer know
class BufferOfSome(ReorderBuffer):
    def ready(self):
        found = []
        while self.waiting.get(self.next) is not None:
            found.append(self.waiting.pop(self.next))
            self.next += 1
        return found


class Loader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        workers = [
            self.backend.start(work, self.dataset, self.collate, tasks, results)
            for _ in range(self.num_workers)
        ]
        try:
            todo = enumerate(indices_of(len(self.dataset), self.batch_size))
            buffer, on_path = BufferOfSome(), 0
            for task in itertools.islice(todo, self.window):
                tasks.put(task)
                on_path += 1
            while on_path:
                number, batch, error = results.get()
                buffer.put(number, error or batch)
                for ready in buffer.ready():
                    if isinstance(ready, Exception):
                        raise ready
                    yield ready
                    on_path -= 1
                    for task in itertools.islice(todo, 1):
                        tasks.put(task)
                        on_path += 1
        finally:
            for _ in workers:
                tasks.put(None)
            for worker in workers:
                worker.join()


# %% loader | mistake: a batch of None counts as one that has failed | hint: your loader that one has failed
class Loader(EpochLoader):
    def __iter__(self):
        tasks, results = self.backend.queue(), self.backend.queue()
        workers = [
            self.backend.start(work, self.dataset, self.collate, tasks, results)
            for _ in range(self.num_workers)
        ]
        try:
            todo = enumerate(indices_of(len(self.dataset), self.batch_size))
            buffer, on_path = ReorderBuffer(), 0
            for task in itertools.islice(todo, self.window):
                tasks.put(task)
                on_path += 1
            while on_path:
                number, batch, error = results.get()
                buffer.put(number, (batch, error))
                for ready, failure in buffer.ready():
                    if ready is None:
                        raise failure
                    yield ready
                    on_path -= 1
                    for task in itertools.islice(todo, 1):
                        tasks.put(task)
                        on_path += 1
        finally:
            for _ in workers:
                tasks.put(None)
            for worker in workers:
                worker.join()


# %% abandon
samples_read = 4 * 5


# %% abandon | mistake: only what the loop used | hint: before the loop had its first batch
samples_read = 5


# %% abandon | mistake: the whole dataset | hint: it has a window
samples_read = 1000


# %% abandon-explain
# It drops them. The loop's side empties the queue of tasks before it sends `None`, or workers skip tasks of an epoch
# that has ended. Then only the batches that workers have already begun are still read, instead of all 4 in the window.


# %% processes
class Processes:
    context = multiprocessing.get_context("forkserver")

    def queue(self):
        return self.context.SimpleQueue()

    def start(self, function, dataset, collate, tasks, results):
        pickled = cloudpickle.dumps((function, dataset, collate))
        worker = self.context.Process(
            target=call_pickled, args=(pickled, tasks, results), daemon=True
        )
        worker.start()
        return worker


# %% processes | mistake: these are threads | hint: you started no process
class Processes:
    def queue(self):
        return queue.SimpleQueue()

    def start(self, function, dataset, collate, tasks, results):
        worker = threading.Thread(
            target=function, args=(dataset, collate, tasks, results), daemon=True
        )
        worker.start()
        return worker


# %% processes | mistake: a queue of threads | hint: cannot pickle
class Processes:
    context = multiprocessing.get_context("forkserver")

    def queue(self):
        return queue.SimpleQueue()

    def start(self, function, dataset, collate, tasks, results):
        pickled = cloudpickle.dumps((function, dataset, collate))
        worker = self.context.Process(
            target=call_pickled, args=(pickled, tasks, results), daemon=True
        )
        worker.start()
        return worker


# %% processes | mistake: the class is sent by its name | hint: Send it with cloudpickle
class Processes:
    context = multiprocessing.get_context("forkserver")

    def queue(self):
        return self.context.SimpleQueue()

    def start(self, function, dataset, collate, tasks, results):
        worker = self.context.Process(
            target=function, args=(dataset, collate, tasks, results), daemon=True
        )
        worker.start()
        return worker


# %% processes | mistake: the process is not returned | hint: has to return the process
class Processes:
    context = multiprocessing.get_context("forkserver")

    def queue(self):
        return self.context.SimpleQueue()

    def start(self, function, dataset, collate, tasks, results):
        pickled = cloudpickle.dumps((function, dataset, collate))
        self.context.Process(
            target=call_pickled, args=(pickled, tasks, results), daemon=True
        ).start()


# %% processes-explain
# If this process read the samples, they would be made one after the other, under one interpreter lock, and the loop
# would have to wait. The workers would do nothing. The point of the backend is that samples are computed in other
# processes, while the loop goes on.


# %% survives
survives = {
    "a sample raises an exception": True,
    "the loop is left early, with small batches": True,
    "a worker process is killed": False,
    "a sample never returns": False,
    "a batch is None": True,
}


# %% survives | mistake: an exception of the other worker | hint: who would put the result
survives = {
    "a sample raises an exception": True,
    "the loop is left early, with small batches": True,
    "a worker process is killed": True,
    "a sample never returns": False,
    "a batch is None": True,
}


# %% survives | mistake: None ends everything | hint: Only a *task* of None is special
survives = {
    "a sample raises an exception": True,
    "the loop is left early, with small batches": True,
    "a worker process is killed": False,
    "a sample never returns": False,
    "a batch is None": False,
}


# %% survives-explain
# A worker that is killed, or that never comes back from a sample, puts nothing into the queue of results, and the loop
# waits for it forever. So the loop must also watch whether the workers are alive, for example with `process.sentinel`
# and the exit code. And it must watch the clock, with a limit on how long a batch may take.
