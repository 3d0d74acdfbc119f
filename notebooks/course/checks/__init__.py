"""The checks of the course: they say whether an answer is right, and if not, what to look at next.

A unit has one module here, whose functions check one task each. A check raises `Hint` for a wrong answer and returns
a sentence for a right one; `Unit.task` prints either and remembers it. Code of students runs in `attempt`, which
turns what it raises into a hint, and gives up on code that never ends.
"""

from __future__ import annotations

import functools
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

RIGHT, WRONG, OPEN = "Correct.", "Not yet.", "Not answered yet:"
"""How the text of a check begins."""
LIMIT = 30.0
"""Seconds after which the code of a student is taken to hang. A machine that many students share may be slow."""


# The course starts more workers than there are cores, on purpose.
warnings.filterwarnings("ignore", "This DataLoader will create")


class Hint(Exception):  # noqa: N818 - it is no error of the program: students read its text
    """Why an answer is not right, and what to look at."""


class Unanswered(Hint):
    """The answer is still the `...` of the empty cell."""


class Result(NamedTuple):
    """What became of the newest answer to a task."""

    solved: bool
    text: str


class Unit:
    """The tasks of a unit, in the order in which they were declared, and which of them are solved."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}

    def task(self, name: str) -> Callable[[Callable[..., str]], Callable[..., None]]:
        """Declare a function as the check of a task. It prints the result instead of returning or raising it."""
        self.results[name] = Result(solved=False, text=f"{OPEN} run its check.")

        def declare(check: Callable[..., str]) -> Callable[..., None]:
            @functools.wraps(check)
            def run(*answers: Any, **measured: Any) -> None:
                self.results[name] = result = _judge(check, answers, measured)
                print(f"{name}: {result.text}")

            return run

        return declare

    def progress(self) -> None:
        """Print which tasks are solved."""
        for name, result in self.results.items():
            print(f"{'solved' if result.solved else 'open  '}  {name}")
        print(
            f"{sum(result.solved for result in self.results.values())} of {len(self.results)} tasks are solved"
        )


def _judge(
    check: Callable[..., str], answers: tuple[Any, ...], measured: dict[str, Any]
) -> Result:
    try:
        if any(value is ... for value in (*answers, *measured.values())):
            raise Unanswered(
                "replace the dots in the cell above, run it, and run this cell again."
            )
        return Result(solved=True, text=f"{RIGHT} {check(*answers, **measured)}")
    except Unanswered as hint:
        return Result(solved=False, text=f"{OPEN} {hint}")
    except Hint as hint:
        return Result(solved=False, text=f"{WRONG} {hint}")
    except Exception as error:  # noqa: BLE001 - an answer may be anything, and the check expects something else
        return Result(
            solved=False,
            text=f"{WRONG} the check cannot use your answer ({type(error).__name__}: {error}). Does it have the form "
            "that the task asks for, with no dots or None left in it?",
        )


def attempt(code: Callable[..., Any], *arguments: Any, limit: float = LIMIT) -> Any:
    """Call code of a student, and return what it returns.

    It runs on a thread of its own, which is left behind if it never ends.

    Raises:
        Unanswered: The code is still the empty answer.
        Hint: It raised something, or did not end within `limit` seconds.
    """
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(code(*arguments))
        except BaseException as error:  # noqa: BLE001 - it may raise anything; all of it is shown to the student
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True, name="answer of a student")
    thread.start()
    thread.join(limit)
    if thread.is_alive():
        raise Hint(
            f"your code did not end within {limit:.0f} s: it waits for something that never comes. Who should send "
            "it, or release it, and does every path of your code get there?"
        )
    if failure:
        if isinstance(failure[0], Hint):
            raise failure[0]
        if isinstance(failure[0], NotImplementedError):
            raise Unanswered("a part still raises NotImplementedError: write it.")
        raise Hint(_report(failure[0])) from failure[0]
    if outcome[0] is ...:
        raise Unanswered("your function still returns the dots: replace them.")
    return outcome[0]


def _report(error: BaseException) -> str:
    """What code of a student raised, and the innermost line of it: of a cell, and not of a library that it calls."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if Path(__file__).parent not in Path(frame.filename).parents
    ]
    cells = [frame for frame in own if "ipykernel" in frame.filename]
    innermost = (cells or own)[-1:]
    line = "".join(f", at the line `{frame.line}`" for frame in innermost if frame.line)
    return f"your code raised {type(error).__name__}: {error}{line}."


def number(answer: Any, of: str) -> Any:
    """The answer, if it is a number.

    Raises:
        Hint: It is something else.
    """
    # NumPy's numbers are real, too.
    if isinstance(answer, bool) or not isinstance(answer, Real):
        raise Hint(f"the answer is a number ({of}), not {answer!r}.")
    return answer


def choices(answer: Any, expected: Mapping[str, Any], why: Mapping[str, str]) -> None:
    """Compare a dict of answers.

    Raises:
        Unanswered: One of them is still the dots.
        Hint: One is missing or wrong; the text is the hint of the first wrong one.
    """
    if not isinstance(answer, dict) or set(answer) != set(expected):
        raise Hint(f"the answer is a dict with these keys: {', '.join(expected)}.")
    unanswered = [name for name in expected if answer[name] is ...]
    if unanswered:
        raise Unanswered(f"{', '.join(unanswered)}.")
    wrong = [name for name, value in expected.items() if answer[name] != value]
    if wrong:
        raise Hint(
            f"{len(wrong)} of {len(expected)} are wrong. Look at {wrong[0]!r}: {why[wrong[0]]}"
        )


def counts(
    answer: Any, expected: Mapping[str, int], why: Mapping[str, str], of: str
) -> None:
    """Compare a dict of numbers.

    Raises:
        Unanswered: One of them is still the dots.
        Hint: One is no number, is missing, or is wrong.
    """
    if isinstance(answer, dict):
        for value in answer.values():
            if value is not ...:
                number(value, of)
    choices(answer, expected, why)
