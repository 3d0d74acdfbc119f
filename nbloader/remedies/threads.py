"""With how many threads libraries compute in this process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables that limit the threads of linear algebra, read when NumPy is imported."""


def blas_threads() -> int | None:
    """Return the number of threads of linear algebra; None if it is not known.

    Without threadpoolctl, only a variable that is set to 1 tells.
    """
    if has_threadpoolctl():
        pools = importlib.import_module("threadpoolctl").threadpool_info()
        return max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=None)
    return 1 if any(os.environ.get(name) == "1" for name in VARIABLES) else None


def opencv_threads() -> int | None:
    """Return the number of threads of OpenCV; None if it is not imported. After `setNumThreads(0)`, it is at most 1."""
    cv2 = sys.modules.get("cv2")
    return None if cv2 is None else int(cv2.getNumThreads())


def has_threadpoolctl() -> bool:
    """Whether threadpoolctl is installed, which changes the number of threads at any time."""
    return importlib.util.find_spec("threadpoolctl") is not None
