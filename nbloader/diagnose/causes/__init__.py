"""The causes that can limit a loop, one module each, and their registry.

To add a cause:

1. Write `causes/<name>.py` with a `Cause`: its name, the parts of the loop's time that it takes and when, its sentence,
   its short form, its remedy. `parts` defines the parts, `work` and `phrases` have what several causes ask and say.
   What only this cause measures, it computes from `Evidence.records`, as `transport` does.
2. Add it to `CAUSES` below, before the causes that would otherwise take its part of the time.
3. Add an example of it to `ALONE` in tests/test_diagnose.py, and one with a real loader to tests/planted.py.
4. Document it where the tests miss it: its rule in docs/diagnosis.md, its section in docs/slow.md and its leaf in the
   drawing there.
"""

from __future__ import annotations

from nbloader.diagnose.causes.base import Cause, Remedy
from nbloader.diagnose.causes.collate import COLLATE
from nbloader.diagnose.causes.compute import COMPUTE, COMPUTE_FULL
from nbloader.diagnose.causes.consumer import CONSUMER, CONSUMER_PYTHON
from nbloader.diagnose.causes.cores_taken import CORES_TAKEN
from nbloader.diagnose.causes.huge_batches import HUGE_BATCHES
from nbloader.diagnose.causes.in_process import IN_PROCESS
from nbloader.diagnose.causes.interpreter_lock import INTERPRETER_LOCK
from nbloader.diagnose.causes.lock import LOCK
from nbloader.diagnose.causes.memory import MEMORY
from nbloader.diagnose.causes.pickling import PICKLE
from nbloader.diagnose.causes.sampler import SAMPLER
from nbloader.diagnose.causes.slow_samples import SLOW_SAMPLES
from nbloader.diagnose.causes.slow_worker import SLOW_WORKER
from nbloader.diagnose.causes.stall import STALL
from nbloader.diagnose.causes.startup import STARTUP
from nbloader.diagnose.causes.threads import THREADS
from nbloader.diagnose.causes.transport import TRANSPORT
from nbloader.diagnose.causes.unknown import UNKNOWN
from nbloader.diagnose.causes.upload import UPLOAD
from nbloader.diagnose.causes.waiting import WAITING
from nbloader.diagnose.causes.window import WINDOW

__all__ = [
    "BY_NAME",
    "CAUSES",
    "CORES_TAKEN",
    "LOCK",
    "NOT_FETCHING",
    "PICKLE",
    "SAMPLER",
    "UNKNOWN",
    "Cause",
    "Remedy",
]

CAUSES: tuple[Cause, ...] = (
    CONSUMER_PYTHON,
    STARTUP,
    STALL,
    SAMPLER,
    UPLOAD,
    IN_PROCESS,
    SLOW_SAMPLES,
    INTERPRETER_LOCK,
    CONSUMER,
    PICKLE,
    TRANSPORT,
    SLOW_WORKER,
    WINDOW,
    HUGE_BATCHES,
    COLLATE,
    THREADS,
    CORES_TAKEN,
    COMPUTE_FULL,
    MEMORY,
    LOCK,
    COMPUTE,
    WAITING,
    UNKNOWN,
)
"""All causes. Each part of the loop's time goes to the first one that applies to it, so special causes stand before
general ones."""
NOT_FETCHING = frozenset(cause.name for cause in (SAMPLER, CONSUMER, CONSUMER_PYTHON))
"""The names of the causes that lie in code which workers do not execute."""
BY_NAME = {cause.name: cause for cause in CAUSES}
"""The causes by their names in `Snapshot.cause`, which may also be a state of the loader."""
