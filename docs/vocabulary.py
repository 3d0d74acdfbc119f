"""The words that the dashboard shows, with their colors, from the code. The reference gives their meanings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nbloader._util import palette
from nbloader.dashboard.panels import PANELS
from nbloader.dashboard.panels.workers import COLUMNS
from nbloader.diagnose.causes import BY_NAME
from nbloader.report.slices import KINDS


def _stages() -> dict[str, str]:
    return dict(palette.STAGES)


def _causes() -> dict[str, str]:
    return {name: palette.cause_color(name) for name in BY_NAME}


def _states() -> dict[str, str]:
    """The states of workers, and the words that the dashboard uses instead of some: `panels/workers.py`."""
    return {**palette.STATES, **dict.fromkeys(("stuck", "discarding", "stopped", "not started"), "")}


def _timeline() -> dict[str, str]:
    return {kind.label: kind.color for kind in KINDS.values()}


def _panels() -> dict[str, str]:
    return {panel.title or panel.name: "" for panel in PANELS}


def _columns() -> dict[str, str]:
    return dict.fromkeys(COLUMNS, "")


VOCABULARIES = {
    "stages": _stages,
    "causes": _causes,
    "states": _states,
    "timeline": _timeline,
    "panels": _panels,
    "columns": _columns,
}
"""By the name that the page uses: functions that return words and their colors, "" for none."""


def problem(name: str, given: Mapping[str, str]) -> str:
    """What is wrong with the meanings that a page gives for a vocabulary; "" if nothing is."""
    words = VOCABULARIES[name]()
    if missing := words.keys() - given.keys():
        return f"{name}: no meaning for {', '.join(sorted(missing))}"
    if unknown := given.keys() - words.keys():
        return f"{name}: the code has no {', '.join(sorted(unknown))}"
    return ""


def meanings(lines: Iterable[str]) -> dict[str, str]:
    """The meanings on a page: `word: meaning`, each of which may go on in indented lines."""
    return dict(entry.split(": ", 1) for entry in _joined(lines))


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Entries with their indented lines."""
    entry = ""
    for line in lines:
        if line.startswith(" "):
            entry += f" {line.strip()}"
            continue
        if entry:
            yield entry
        entry = line
    if entry:
        yield entry
