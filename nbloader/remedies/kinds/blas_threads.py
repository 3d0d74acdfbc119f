"""NumPy's linear algebra computes with several threads in each worker, which compete for the cores."""

from __future__ import annotations

import ast

from nbloader.remedies.difference import array_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Site
from nbloader.remedies.threads import VARIABLES, has_threadpoolctl

PRODUCTS = ("dot", "matmul", "einsum", "tensordot", "inner", "vdot")
CALLERS = ("numpy", "scipy", "sklearn")
"""Packages whose functions use linear algebra, where other threads compute while a sample is produced."""
OTHERS = 0.2
"""They do if theirs is at least this share of the CPU time."""
LARGE = 10_000
"""Number of elements from which the work of a line is large enough for several threads."""
FLOAT = 4
"""Size of an element of the samples, bytes."""
WHY = "In each worker, NumPy's linear algebra uses as many threads as there are cores, and these compete for the cores."
SHORT = "Use one thread per worker for linear algebra"
HELPER = """\
import threadpoolctl

def one_thread(worker):
    threadpoolctl.threadpool_limits(1)

one_thread(0)  # DataLoader(..., worker_init_fn=one_thread)
"""
FIRST_CELL = """\
import os

os.environ |= dict.fromkeys({}, "1")
"""


class BlasThreads:
    """`a @ b`, `np.linalg...`: as many threads as cores, in each worker."""

    name = "blas-threads"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`. Nothing is proposed if one thread computes already, or, untried, for small arrays."""
        several = site.facts.other_threads >= OTHERS and any(self._may_multiply(site, node) for node in site.nodes)
        if site.facts.blas_threads == 1 or not (several or any(self._multiplies(site, node) for node in site.nodes)):
            return []
        if not has_threadpoolctl():
            if not (several or self._is_large(site)):
                return []
            return [
                Proposal(
                    why=WHY,
                    instead="Use one thread per worker: restart the kernel, and run the code below in the first cell.",
                    helper=FIRST_CELL.format(VARIABLES),
                    saves="threads",
                    short=SHORT,
                    is_certain=False,
                    untried="the variables take effect only when NumPy is imported",
                )
            ]
        return [
            Proposal(
                why=WHY,
                instead=(
                    "Use one thread per worker: pass the function below as worker_init_fn, or set "
                    "OPENBLAS_NUM_THREADS=1 and MKL_NUM_THREADS=1 before NumPy is imported."
                ),
                code=site.source,
                helper=HELPER,
                saves="threads",
                short=SHORT,
                is_certain=False,
            )
        ]

    @staticmethod
    def _is_large(site: Site) -> bool:
        """Whether a sample, or a known array on the line, is large enough that several threads compute."""
        known = [site.target(node) for node in site.nodes if isinstance(node, (ast.Name, ast.Attribute))]
        arrays = [array for one in known if (array := array_of(one)) is not None]
        return site.facts.nbytes >= LARGE * FLOAT or any(array.size >= LARGE for array in arrays)

    @staticmethod
    def _multiplies(site: Site, node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.MatMult)
        if not isinstance(node, ast.Call):
            return False
        called = site.target(node.func)
        module = getattr(called, "__module__", "") or ""
        return module.startswith(("numpy.linalg", "scipy.linalg")) or (
            module.startswith("numpy") and getattr(called, "__name__", "") in PRODUCTS
        )

    @staticmethod
    def _may_multiply(site: Site, node: ast.AST) -> bool:
        """Whether a node calls a function that may use linear algebra."""
        called = site.target(node.func) if isinstance(node, ast.Call) else None
        return (getattr(called, "__module__", "") or "").partition(".")[0] in CALLERS


REMEDY = BlasThreads()
