"""How long recovery from each fault takes, with real processes. `make faults` prints the table of
docs/explanation/benchmarks.md.

Each fault is provoked `ROUNDS` times; the table has the median and the maximum.
"""

from __future__ import annotations

import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import datasets as d
import psutil
from datasets import Hangs, Numbers, Slow, alive, at_stage, flat, wait_for
from light import hang_in_c

from nbloader import DataLoader, LoaderTimeoutError, WorkerDiedError, WorkerStartError
from nbloader import events as ev

ROUNDS = 5
HEAD = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(pathlib.Path(__file__).parent.parent)!r})
from datasets import *
from nbloader import DataLoader
import psutil
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def when(loader, kind, condition=lambda _event: True):
    """A `threading.Event` that is set by the first matching event of the loader, and a list with its time."""
    seen, at = threading.Event(), []

    def watch(event):
        if isinstance(event, kind) and condition(event) and not seen.is_set():
            at.append(time.monotonic())
            seen.set()

    loader.events.subscribe(watch)
    return seen, at


def killed():
    """From the kill until the replacement process has its dataset."""
    with DataLoader(Slow(400, wait=0.002), 2, num_workers=2) as loader:
        epoch = iter(loader)
        next(epoch)
        wait_for(lambda: sum(w.state == "idle" for w in loader.stats().workers) == 2)
        victim = loader.stats().workers[0].pid
        seen, at = when(loader, ev.WorkerReady, lambda e: e.pid != victim)
        begun = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        seen.wait(30)
        assert flat(epoch) == list(range(2, 400))
        return at[0] - begun


def deadly_batch():
    """From `iter` to the error of a batch that kills three workers, with warm workers."""
    with DataLoader(batch_size=3, num_workers=2, **at_stage("fetch", 9, d.sigkill)) as loader:
        begun = time.monotonic()
        try:
            list(loader)
        except WorkerDiedError:
            return time.monotonic() - begun
        raise AssertionError("no error")


def deadly_start():
    with DataLoader(batch_size=3, num_workers=2, **at_stage("arrival", 9, d.exit_with_7)) as loader:
        begun = time.monotonic()
        try:
            list(loader)
        except WorkerStartError:
            return time.monotonic() - begun
        raise AssertionError("no error")


def hanging(how, **options):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "flag").touch()
    data = Hangs(40, bad=1, flag=str(folder / "flag"), hung=str(folder / "hung"), how=how)
    return DataLoader(data, 2, num_workers=2, **options), folder / "flag", folder / "hung"


def restarted():
    """From `restart_workers()` until the batch that hung is delivered."""
    loader, flag, hung = hanging(hang_in_c)
    with loader:
        epoch = iter(loader)
        wait_for(hung.exists)
        flag.unlink()
        begun = time.monotonic()
        loader.restart_workers()
        next(epoch)
        return time.monotonic() - begun


def stack():
    """`loader.stack()` of a worker that hangs in C code."""
    loader, _flag, hung = hanging(hang_in_c)
    with loader:
        epoch = iter(loader)
        wait_for(hung.exists)
        (at,) = wait_for(lambda: [w.worker for w in loader.stats().workers if w.sample == 1])
        wait_for(lambda: "in hang_in_c" in loader.stack(at))
        begun = time.monotonic()
        loader.stack(at)
        assert epoch is not None
        return time.monotonic() - begun


def late(on_timeout):
    """From `timeout` until the batch is delivered or the error is raised."""
    loader, flag, hung = hanging(hang_in_c, timeout=1, on_timeout=on_timeout)
    with loader:
        epoch = iter(loader)
        wait_for(hung.exists)
        flag.unlink()
        begun = time.monotonic()
        try:
            next(epoch)
        except LoaderTimeoutError:
            assert on_timeout == "raise"
        return time.monotonic() - begun - 1


def resized():
    """From `num_workers = 4` until all four have their dataset."""
    with DataLoader(Slow(400, wait=0.002), 2, num_workers=2) as loader:
        epoch = iter(loader)
        next(epoch)
        wait_for(lambda: sum(w.state != "starting" for w in loader.stats().workers) == 2)
        seen, at = when(loader, ev.WorkerReady, lambda e: e.worker == 3)
        begun = time.monotonic()
        loader.num_workers = 4
        seen.wait(30)
        assert flat(epoch) == list(range(2, 400))
        return at[0] - begun


def script(code):
    return subprocess.Popen([sys.executable, "-c", HEAD + code], stdout=subprocess.PIPE, text=True)


def interrupted():
    """From the signal until the next line of the cell runs."""
    with script(
        """
loader = DataLoader(Slow(10, wait=3600), 2, num_workers=2)
sent = []
def interrupt():
    wait_for(lambda: any(w.batch is not None for w in loader.stats().workers))
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    next(iter(loader))
except KeyboardInterrupt:
    print(time.monotonic() - sent[0])
"""
    ) as process:
        return float(process.communicate()[0])


BUSY = """
loader = DataLoader(Slow(10, wait=3600), 2, num_workers=2)
it = iter(loader)
wait_for(lambda: sum(w.batch is not None for w in loader.stats().workers) == 2)
print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
"""


def kernel_killed():
    """From the kill of the notebook's process until no worker remains."""
    with script(BUSY + "time.sleep(3600)\n") as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        begun = time.monotonic()
        process.kill()
        wait_for(lambda: not any(map(alive, pids)))
        return time.monotonic() - begun


def abandoned():
    """From the end of the program, without `close()`, until no process remains."""
    with script(BUSY + "print(time.monotonic(), flush=True)\n") as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        at = float(process.stdout.readline())
        process.wait()
        wait_for(lambda: not any(map(alive, pids)))
        return time.monotonic() - at


ROWS = [
    ("a worker is killed, crashes or exits", "nothing: its batches are produced again, in order", killed),
    ("a batch kills three workers in a row", "`WorkerDiedError`: samples, signal, last output", deadly_batch),
    ("workers die during startup", "`WorkerStartError` after three attempts, with their last output", deadly_start),
    ("a worker hangs, also in C code: `restart_workers()` or its button", "the stall ends", restarted),
    ("the same: `loader.stack(0)`", "file and line", stack),
    ("the same: `timeout=`", "`LoaderTimeoutError` with the stack; time after `timeout`", lambda: late("raise")),
    ("the same: `on_timeout='restart'`", "one line in the cell; time after `timeout`", lambda: late("restart")),
    ("`num_workers = 4` instead of 2, in mid-epoch", "nothing; until both are ready", resized),
    ("Ctrl-C", "the cell ends; the next epoch works", interrupted),
    ("the kernel is killed", "no process remains", kernel_killed),
    ("the program ends without `close()`", "nothing; no process remains", abandoned),
]


def shown(seconds):
    if seconds < 0.01:
        return f"{1000 * seconds:.1f} ms"
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def main():
    with DataLoader(Numbers(8), 2, num_workers=2) as loader:  # starts the shared fork server
        list(loader)
    print(f"{psutil.cpu_count()} cores; median and maximum of {ROUNDS}\n")
    print("| fault | what the loop sees | time | maximum |\n|---|---|---|---|")
    for what, sees, measure in ROWS:
        times = [measure() for _ in range(ROUNDS)]
        print(f"| {what} | {sees} | {shown(statistics.median(times))} | {shown(max(times))} |", flush=True)


if __name__ == "__main__":
    main()
