"""Try a proposal on the user's own samples, in a spare worker process.

    loader.remedies() -> a loader with one worker over a Trial -> trial[k]: both codes, measured -> Measured

A trial is a map-style dataset, so that its worker is started, watched and ended as every other worker. What it changes,
it changes in that process: the worker is a fork of the notebook, and ends with the trial.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from nbloader._util import rng
from nbloader._util.rng import mix
from nbloader.metrics.hot_lines import HotLine
from nbloader.remedies.difference import Difference, difference
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import locate

SEED = 0
"""Both codes draw the same random numbers."""


class CannotTryError(Exception):
    """The rewritten code cannot take the place of the present one, or has raised an exception."""


class Cost(NamedTuple):
    """What it took to produce some samples."""

    computing: float
    """CPU time of all threads of the process, seconds."""
    waiting: float
    """The rest of the time, seconds."""

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.computing + self.waiting


class Measured(NamedTuple):
    """Some samples, produced by the present code and by the rewritten code."""

    samples: int
    before: Cost
    after: Cost
    difference: Difference
    problem: str = ""
    """What the rewritten code has raised, or why it cannot be tried; "" if nothing."""


@dataclass
class Trial:
    """A dataset whose items are measurements.

    Args:
        produce: Makes a batch from dataset indices, as the loader would.
        roots: Where the function of the line is reachable from.
        groups: The dataset indices of each measurement. Those of the first one are not measured: on them, both codes do
            what they do once per process.
        line: The slow line.
        proposal: What to write instead.
    """

    produce: Callable[[Any], Any]
    roots: Sequence[Any]
    groups: Sequence[Any]
    line: HotLine
    proposal: Proposal
    _new: _Swap | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self.groups) - 1

    def __getitem__(self, position: int) -> Measured:
        """Measure both codes on one group of samples.

        Raises:
            Exception: Whatever the present code raises.
        """
        first, indices, seed = self.groups[0], self.groups[1 + position], mix(SEED, position)
        self._run(None, indices, seed)  # its files are in the page cache from now on, for both codes
        try:
            if self._new is None:
                self._new = self._rewritten()
                self._run(self._new, first, SEED)
            if position % 2:
                (after, made), (before, usual) = self._run(self._new, indices, seed), self._run(None, indices, seed)
            else:
                (before, usual), (after, made) = self._run(None, indices, seed), self._run(self._new, indices, seed)
        except CannotTryError as error:
            return Measured(len(indices), Cost(0, 0), Cost(0, 0), Difference(), str(error))
        return Measured(len(indices), before, after, difference(usual, made))

    def _rewritten(self) -> _Swap:
        site = locate(self.line, self.roots)
        if site is None:
            raise CannotTryError("the function of the line was not found in the worker")
        return _Swap(site.function, code_of(site.function, self.proposal))

    def _run(self, new: _Swap | None, indices: Any, seed: int) -> tuple[Cost, Any]:
        rng.seed_everything(seed)
        if new is None:
            return _measured(self.produce, indices)
        function: Any = new.function  # mypy takes the attribute for that of a method
        usual, function.__code__ = function.__code__, new.code
        try:
            return _measured(self.produce, indices)
        except Exception as error:
            raise CannotTryError(f"the rewritten code raises {type(error).__name__}: {error}") from error
        finally:
            function.__code__ = usual


class _Swap(NamedTuple):
    function: FunctionType
    code: CodeType


def _measured(produce: Callable[[Any], Any], indices: Any) -> tuple[Cost, Any]:
    cpu, begin = time.process_time(), time.perf_counter()
    made = produce(indices)
    elapsed, computing = time.perf_counter() - begin, time.process_time() - cpu
    return Cost(computing, max(0.0, elapsed - computing)), made


def code_of(function: FunctionType, proposal: Proposal) -> CodeType:
    """Compile the rewritten function so that it can take the place of the present one, and execute the helper's code.

    Args:
        function: The present function.
        proposal: The proposal.

    Raises:
        CannotTryError: It needs a package that is missing, or refers to other variables of enclosing functions.
    """
    if proposal.package:
        raise CannotTryError(f"needs {proposal.package}, which is not installed: pip install {proposal.package}")
    if proposal.helper:
        exec(compile(proposal.helper, "<nbloader remedy>", "exec"), function.__globals__)  # noqa: S102 - of a remedy
    free = function.__code__.co_freevars
    *_outer, owner, name = ["", *function.__qualname__.replace("<locals>.", "").split(".")]
    # As a method of a class of this name, in a function with the same variables, it is compiled as it was.
    around = ast.parse(f"def _around({', '.join(free)}):\n    class {owner or '_'}: pass")
    (function_around,) = around.body
    (class_around,) = function_around.body  # type: ignore[attr-defined]
    class_around.body = ast.parse(proposal.code).body
    found = _find(compile(around, function.__code__.co_filename, "exec"), name)
    if found is None or found.co_freevars != free:
        raise CannotTryError("it refers to other variables of enclosing functions than the present code")
    return found


def _find(code: CodeType, name: str) -> CodeType | None:
    """Return the code of the outermost function of this name inside some code."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for constant in inner:
        if constant.co_name == name:
            return constant
    return next((found for constant in inner if (found := _find(constant, name)) is not None), None)
