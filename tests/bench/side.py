"""One measured process: `python side.py SYSTEM ROW KIND SECONDS`.

It reads one command per line and answers each with one line of JSON:

    check    load an epoch and digest its values       -> {"strict": digest, "loose": digest, "batches": n}
    turn     measure once                              -> {"value": figure, ...}

Each system runs in its own process, so that none affects another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import pickle
import resource
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import real_samples
import startup
import systems
import work

LATER = 15
"""Later epochs whose first batch is timed, per turn."""

SAMPLES = 1600
"""Samples of a workload of real_samples.py."""

EPOCHS = 10
"""Epochs after which the memory of a dataset of Python objects is measured."""

_clock = time.perf_counter


class Digest:
    """Order, structure and bytes of batches, as two checksums.

    Attributes:
        strict: Distinguishes container types, tensors from arrays, and dtypes.
        loose: Only the shapes and the values of the leaves, as floats: equal for systems with other types.
    """

    def __init__(self):
        self.strict = self.loose = 0

    def add(self, value):
        if isinstance(value, dict):
            self._text(f"{type(value).__name__} {list(value)}")
            for child in value.values():
                self.add(child)
        elif isinstance(value, (list, tuple)):
            self._text(f"{type(value).__name__} {len(value)}")
            for child in value:
                self.add(child)
        elif work.is_torch(value):
            self._text(f"tensor {value.dtype} {value.requires_grad}")
            self._array(value.numpy())
        elif hasattr(value, "shape"):
            self._text(type(value).__name__)
            self._array(value if isinstance(value, np.ndarray) else np.asarray(_numpy(value)))
        else:
            self._text(type(value).__name__)
            data = repr(value).encode()
            self.strict, self.loose = zlib.crc32(data, self.strict), zlib.crc32(data, self.loose)

    def _text(self, text):
        self.strict = zlib.crc32(text.encode(), self.strict)

    def _array(self, array):
        array = np.ascontiguousarray(array)
        self._text(f"{array.dtype.str} {array.shape}")
        self.strict = zlib.crc32(array, self.strict)
        loose = np.ascontiguousarray(array, np.float32)
        self.loose = zlib.crc32(repr(array.shape).encode(), self.loose)
        self.loose = zlib.crc32(loose, self.loose)


def _numpy(value):
    return value.asnumpy() if hasattr(value, "asnumpy") else value.numpy() if hasattr(value, "numpy") else value


class Side:
    """One system and the workload of one row."""

    def __init__(self, system, row, seconds=0.5):
        self.system = system
        self.seconds = seconds
        self.row = row
        self.work = work.WORK[row]
        if system not in systems.PEERS:
            import torch  # noqa: F401 - a notebook has imported it before its first loop

            import nbloader.loader.dataloader  # noqa: F401
        self.imported = self.first_loader = 0.0
        self.functions = {}
        if self.work.package:
            begin = _clock()
            self.dataset, self.functions = startup.WORKLOADS[self.work.package]()
            self.imported = _clock() - begin
        elif self.work.samples:
            self.dataset, options = real_samples.WORKLOADS[self.work.samples](SAMPLES)
            self.work = dataclasses.replace(
                self.work, batch_size=options["batch_size"], collate=options.get("collate_fn")
            )
        else:
            self.dataset = self.work.dataset()
        self.loader = None

    def open(self):
        if self.loader is None:
            self.loader = systems.make(self.system, self.work, self.dataset)
        return self.loader

    # ---- commands ---------------------------------------------------------------------------------------------

    def check(self):
        return self._digest(self.startup_loader() if self.work.package else self.open())

    def rate(self):
        """Batches per second over whole epochs. The last batch is digested after the clock has stopped."""
        loader = self.open()
        slept = overshoot(self.dataset)
        watching = getattr(loader, "cpu", 0.0)
        everyone = cpu_seconds()
        batches, begin, cpu, firsts = 0, _clock(), time.process_time(), []
        while True:
            began = _clock()
            iterator = iter(loader)
            last_batch = next(iterator)
            firsts.append(_clock() - began)
            batches += 1
            for last_batch in iterator:  # noqa: B007 - digested below, after the clock has stopped
                batches += 1
            seconds = _clock() - begin
            if seconds >= self.seconds:
                break
        cpu, everyone = time.process_time() - cpu, cpu_seconds() - everyone
        last = Digest()
        last.add(self._plain(last_batch))
        return {
            "value": batches / seconds, "cpu_us": 1e6 * cpu / batches, "slept": slept,
            "all_us": 1e6 * everyone / batches, "first_us": 1e6 * statistics.median(firsts),
            "watching": 100 * (getattr(loader, "cpu", 0.0) - watching) / seconds,
            "last_strict": last.strict, "last_loose": last.loose,
        }  # fmt: skip

    def later(self):
        """Milliseconds from `iter()` to the first batch of later epochs, and to produce that batch in process."""
        loader = self.open()
        took = []
        for _ in range(LATER):
            begin = _clock()
            iterator = iter(loader)
            next(iterator)
            took.append(_clock() - begin)
            for _batch in iterator:
                pass
        target = np.empty((self.work.batch_size, 3, 224, 224), np.float32)
        own = []
        for _ in range(LATER):
            begin = _clock()
            np.stack([self.dataset[i] for i in range(self.work.batch_size)], out=target)
            own.append(_clock() - begin)
        return {"value": 1e3 * statistics.median(took), "own": 1e3 * statistics.median(own)}

    def first(self):
        """Milliseconds to the first batch of a process, from `iter()` and from creating the loader."""
        made = _clock()
        loader = self.open()
        begin = _clock()
        iterator = iter(loader)
        batch = next(iterator)
        now = _clock()
        digest = Digest()
        digest.add(batch)
        for batch in iterator:
            digest.add(batch)
        needed = "torch" if self.row == "first_torch" else "numpy"
        before = _clock()
        subprocess.run([sys.executable, "-c", f"import {needed}"], check=True)
        once = 1e3 * (_clock() - before)
        return {
            "value": 1e3 * (now - begin), "with_init": 1e3 * (now - made), "once": once,
            "strict": digest.strict, "loose": digest.loose,
        }  # fmt: skip

    def startup_loader(self):
        """A new loader; the first one is timed."""
        from torch.utils.data import DataLoader

        if self.system == "nbloader":
            from nbloader import DataLoader
        begin = _clock()
        loader = DataLoader(self.dataset, self.work.batch_size, num_workers=self.work.workers, **self.functions)
        if not self.first_loader:
            next(iter(loader))
            self.first_loader = _clock() - begin
        return loader

    def startup(self):
        """Milliseconds until a new loader has given its first batch; and the first loader of the process."""
        begin = _clock()
        iterator = iter(self.startup_loader())
        next(iterator)
        took = _clock() - begin
        for _batch in iterator:
            pass
        return {"value": 1e3 * took, "first": 1e3 * self.first_loader, "imported": 1e3 * self.imported}

    def shuffled(self):
        """Milliseconds to the first of 100 million shuffled samples, and the MB that this process needed for it."""
        from nbloader import DataLoader

        before = peak_mb()
        loader = DataLoader(self.dataset, self.work.batch_size, shuffle=True, num_workers=self.work.workers)
        begin = _clock()
        iterator = iter(loader)
        drawn = next(iterator).tolist()
        took = _clock() - begin
        grown = peak_mb() - before
        drawn += [i for _, batch in zip(range(100), iterator, strict=False) for i in batch.tolist()]
        loader.close()
        right = len(set(drawn)) == len(drawn) and 0 <= min(drawn) < max(drawn) < len(self.dataset)
        if not right or statistics.pstdev(drawn) < 0.2 * len(self.dataset):
            raise ValueError(f"not a shuffled order: {drawn[:64]}")
        return {"value": 1e3 * took, "mb": grown}

    def memory(self):
        """Largest memory in MB of all processes while workers read the array again; time to the first batch.

        Also reported: the memory of this process before it created a loader (the array, Python, torch), which is the
        minimum, and the size of our segments.
        """
        shared = shared_mb()
        before = memory_mb(shared)
        begin = _clock()
        iterator = iter(self.open())
        batch = next(iterator)
        first = _clock() - begin
        digest = Digest()
        digest.add(batch)
        for batch in iterator:
            digest.add(batch)
        del batch
        used, segments = [], []
        for number, batch in enumerate(self.loader):  # once more: each worker reads more than its first share
            digest.add(batch)
            if number % 8 == 7:
                used.append(memory_mb(shared))
                segments.append(segments_mb(self.loader))
        del batch
        return {
            "value": max(used), "segments": max(segments), "before": before, "first": 1e3 * first,
            "strict": digest.strict, "loose": digest.loose,
        }  # fmt: skip

    def keep(self):
        """Memory of `list(loader)`, compared with just after the start of the workers, relative to the data."""
        chosen = [[-1]] * 8
        loader = systems.make(self.system, self.work, self.dataset, batch_sampler=chosen)
        for _batch in loader:
            pass
        before = pss_mb()
        size = self.work.batch_size
        chosen[:] = [list(range(b * size, (b + 1) * size)) for b in range(work.BATCHES["keep"])]
        kept = list(loader)
        digest = Digest()
        digest.add(kept)  # before the memory is read: pages that this process has not touched are in no PSS
        after = pss_mb()
        data = sum(batch.numel() * batch.element_size() for batch in kept) / 1e6
        return {
            "value": 100 * (after - before) / data, "mb": after - before, "data_mb": data,
            "strict": digest.strict, "loose": digest.loose,
        }  # fmt: skip

    def objects(self):
        """What a dataset of Python objects adds in `EPOCHS` epochs: MB of all processes, ms to the first batch.

        The notebook's own objects are not counted, nor what the same number of workers takes with an empty dataset.
        The first batch includes `nbloader.share`. Also reported: the size of one copy, and the time to pickle and
        unpickle it once.
        """
        begin = _clock()
        data = pickle.dumps(self.dataset, 5)
        twice = _clock() - begin
        own = pss_mb()
        gc.disable()
        begin = _clock()
        copied = pickle.loads(data)
        twice += _clock() - begin
        gc.enable()
        copy_mb = pss_mb() - own
        del copied, data
        before = pss_mb()
        idle = systems.make(self.system, self.work, work.Annotations(1), batch_sampler=[[0]] * self.work.workers)
        for _batch in idle:
            pass
        base = pss_mb() - before
        del idle
        order = np.random.default_rng(0)
        chosen = [None] * (len(self.dataset) // self.work.batch_size)
        begin = _clock()
        if self.system == "nbloader":
            import nbloader

            self.dataset.items = nbloader.share(self.dataset.items)
        self.loader = systems.make(self.system, self.work, self.dataset, batch_sampler=chosen)
        first, total, took = 0.0, 0, []
        for _epoch in range(EPOCHS):
            chosen[:] = order.permutation(len(self.dataset)).reshape(len(chosen), -1).tolist()
            start = _clock()
            for batch in self.loader:
                first = first or _clock() - begin
                total += int(batch.sum())
            took.append(_clock() - start)
        if total != EPOCHS * len(self.dataset) * (len(self.dataset) - 1) // 2:
            raise ValueError("not every sample was loaded once in each epoch")
        return {
            "value": pss_mb() - before - base, "first": 1e3 * first,
            "copy_mb": copy_mb, "twice": 1e3 * twice, "base": base, "epoch": statistics.median(took),
            "strict": total, "loose": total,
        }  # fmt: skip

    # ---- helpers ----------------------------------------------------------------------------------------------

    def _plain(self, batch):
        """What is digested of a batch."""
        return real_samples.parts(batch) if self.work.samples else batch

    def _digest(self, loader):
        digest, batches = Digest(), 0
        for batch in loader:
            digest.add(self._plain(batch))
            batches += 1
        return {"strict": digest.strict, "loose": digest.loose, "batches": batches}


def overshoot(dataset):
    """The ratio of actual to requested sleep time on this machine now. No loader can come closer to the ideal."""
    seconds = getattr(dataset, "seconds", None)
    if seconds is None:
        return 1.0
    sample = seconds[:60]
    begin = _clock()
    for wait in sample:
        time.sleep(wait)
    return (_clock() - begin) / sum(sample)


def cpu_seconds():
    """CPU time of this process and its descendants, seconds."""
    import psutil

    me = psutil.Process(os.getpid())
    times = []
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker that was forked for the last epoch
            times.append(process.cpu_times())
    return sum(taken.user + taken.system for taken in times)


def segments_mb(loader):
    """Memory of the segments that the workers of our loader keep, MB; 0 for other systems."""
    engine = getattr(loader, "_engine", None)
    handles = [] if engine is None else engine._group.pool.handles.values()
    return sum(len(memory) for handle in handles for memory in handle.segments._maps.values()) / 1e6


def peak_mb():
    """Peak resident memory of this process, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def pss_mb(kinds=("Pss",)):
    """Proportional set size of this process and its descendants, MB: their total memory, shared pages counted once.

    Args:
        kinds: Which parts are counted, by their names in /proc/<pid>/smaps_rollup.
    """
    gc.collect()
    import psutil

    me = psutil.Process(os.getpid())
    total = 0
    for process in (me, *me.children(recursive=True)):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.partition(":")[0] in kinds:
                total += int(line.split()[1])
    return total * 1024 / 1e6


def shared_mb():
    """Shared memory of the machine, MB, mapped or not."""
    import psutil

    return psutil.virtual_memory().shared / 1e6


def memory_mb(shared_before):
    """Memory of this process and its descendants, MB, and the shared memory that came to the machine since `before`.

    A batch that torch's worker has sent is mapped by nobody until it is received, so no process's PSS includes it.
    """
    return pss_mb(("Pss_Anon", "Pss_File")) + shared_mb() - shared_before


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep the output of loaders out of the answers
    system, row, kind, seconds = sys.argv[1:]
    side = Side(system, row, float(seconds))
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        command = line.strip()
        answer = side.check() if command == "check" else getattr(side, kind)()
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
