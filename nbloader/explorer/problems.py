"""Finders of problems in what a scan has read: pure functions of rows and checks.

| problem     | a sample that                                                                                          |
|-------------|--------------------------------------------------------------------------------------------------------|
| `failed`    | could not be read                                                                                      |
| `duplicate` | has the same content as an earlier one: the same pictures; without pictures the same signals and       |
|             | arrays; without these the same texts, and in a row of a table the same numbers; else the same values   |
| `alike`     | has a picture that looks like that of an earlier one, and is not the same                              |
| `not finite`| has NaN or infinite numbers                                                                            |
| `missing`   | is a row of a table without a value in a column                                                        |
| `constant`  | has a picture, a volume or a signal with a single value                                                |
| `shape`     | differs from nearly all others: in the shape of a field, or, where shapes vary, in its type, number of |
|             | axes or channels; or in the fields that it has                                                         |

What most samples have is not a problem: a field that is constant in more than half of the samples is not listed.

A scan gives all samples the same seed. A dataset that ignores its index, such as one that takes random crops of one
recording, then returns the same content for all: `suspects()` are two samples that are equal to more than half of all,
and that are read under other seeds. If they differ there, what they have in common is the seed, and they are no
duplicates.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from nbloader._util.format import percent
from nbloader.explorer.looks import alike

ProblemKind: TypeAlias = Literal["failed", "duplicate", "alike", "not finite", "missing", "constant", "shape"]
KINDS: tuple[ProblemKind, ...] = get_args(ProblemKind)

USUAL = 0.9
"""Share of the samples that must have something in common for the others to count as different."""
COMMON = 0.5
"""Share of the samples with a constant or non-finite field above which this is normal for the field."""
MISSING = "missing"
"""In place of the form of a value that is missing in a table."""
FEWEST = 8
"""Minimum number of samples for determining what is usual."""


class Form(NamedTuple):
    """The form of a field in one sample."""

    path: str
    form: str
    """Type, axes and channels: what samples have in common even if their sizes vary."""
    shape: str


class Check(NamedTuple):
    """What a scan has found about one sample."""

    digest: str
    """Digest of the content; empty if there is nothing to compare."""
    forms: tuple[Form, ...]
    constant: tuple[str, ...]
    """Fields with a single value."""
    not_finite: tuple[str, ...]
    """Fields with NaN or infinite numbers."""
    labels: tuple[tuple[str, str], ...]
    """Fields with labels, and their values."""
    look: str = ""
    """What the first picture looks like, see `looks`; empty if there is none."""
    missing: tuple[str, ...] = ()
    """Columns of a table in which the row has no value."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Check:
        """Create a check from the JSON values that a worker has sent."""
        return cls(
            content["digest"],
            tuple(Form(*form) for form in content["forms"]),
            tuple(content["constant"]),
            tuple(content["not_finite"]),
            tuple((path, value) for path, value in content["labels"]),
            content.get("look", ""),
            tuple(content.get("missing", ())),
        )


Found: TypeAlias = "dict[ProblemKind, dict[int, str]]"
"""By kind: the samples that have the problem, by dataset index, with a description."""


def find_problems(errors: Mapping[int, str], checks: Mapping[int, Check], drawn: str = "") -> Found:
    """List the problems.

    Args:
        errors: Errors of the samples that could not be read, by dataset index.
        checks: Checks of the other samples, if they were scanned, by dataset index.
        drawn: Digest of a content that follows from the seed and not from the index: samples that have it are no
            duplicates.
    """
    ordered = dict(sorted(checks.items()))
    return {
        "failed": dict(sorted(errors.items())),
        "duplicate": {index: detail for group in groups(ordered, drawn) for index, detail in _repeated(group, ordered)},
        "alike": _alike(ordered),
        "not finite": _uncommon(
            {i: check.not_finite for i, check in ordered.items()}, "has numbers that are not finite"
        ),
        "missing": _uncommon({i: check.missing for i, check in ordered.items()}, "missing"),
        "constant": _uncommon({i: check.constant for i, check in ordered.items()}, "has a single value"),
        "shape": _different(ordered),
    }


def groups(checks: Mapping[int, Check], drawn: str = "") -> list[list[int]]:
    """Return groups of samples with equal content, each in the order of the indices.

    Args:
        checks: Checks in the order of the indices.
        drawn: See `find_problems`.
    """
    equal: dict[str, list[int]] = {}
    for index, check in checks.items():
        if check.digest and check.digest != drawn:
            equal.setdefault(check.digest, []).append(index)
    return [group for group in equal.values() if len(group) > 1]


def suspects(checks: Mapping[int, Check]) -> list[int]:
    """Return two samples that are equal to more than half of all, to be read under other seeds; none if there are none.

    Args:
        checks: Checks in the order of the indices.
    """
    largest = max(groups(checks), key=len, default=[])
    return largest[:2] if len(checks) >= FEWEST and len(largest) > COMMON * len(checks) else []


def _repeated(group: list[int], checks: Mapping[int, Check]) -> Iterable[tuple[int, str]]:
    first, *others = group
    labels = dict(checks[first].labels)
    for index in others:
        detail = f"the same as {first}"
        for path, value in checks[index].labels:
            if labels.get(path, value) != value:
                detail += f", but {path or 'the value'} is {value} and not {labels[path]}"
        yield index, detail


def _alike(checks: Mapping[int, Check]) -> dict[int, str]:
    """Describe the samples that look like an earlier one; those that are the same are duplicates."""
    found: dict[int, str] = {}
    for first, *others in alike({index: check.look for index, check in checks.items()}):
        found |= {
            index: detail.replace("the same as", "looks like", 1)
            for index, detail in _repeated([first, *others], checks)
            if not checks[index].digest or checks[index].digest != checks[first].digest
        }
    return dict(sorted(found.items()))


def _uncommon(fields: Mapping[int, tuple[str, ...]], what: str) -> dict[int, str]:
    counts = collections.Counter(path for paths in fields.values() for path in paths)
    most = COMMON * len(fields) if len(fields) >= FEWEST else len(fields)
    found = {}
    for index, paths in fields.items():
        listed = [path or "the sample" for path in paths if counts[path] <= most]
        if listed:
            found[index] = f"{', '.join(listed)} {what}"
    return found


def _different(checks: Mapping[int, Check]) -> dict[int, str]:
    if len(checks) < FEWEST:
        return {}
    total = len(checks)
    present = collections.Counter(form.path for check in checks.values() for form in check.forms)
    shapes: dict[str, collections.Counter[tuple[str, str]]] = collections.defaultdict(collections.Counter)
    forms: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for check in checks.values():
        for path, form, shape in check.forms:
            if form == MISSING:
                continue
            shapes[path][form, shape] += 1
            forms[path][form] += 1
    usual = [path for path, count in present.items() if count >= USUAL * total]
    found = {}
    for index, check in checks.items():
        own = {form.path: form for form in check.forms}
        details = []
        for path in usual:
            if path not in own:
                details.append(f"has no field {path}")
                continue
            detail = _deviation(own[path], shapes[path], forms[path])
            if detail:
                details.append(detail)
        details += [
            f"has a field {path}, as {percent(present[path] / total)} of the samples"
            for path in own
            if present[path] <= (1 - USUAL) * total
        ]
        if details:
            found[index] = "; ".join(details)
    return found


def _deviation(own: Form, shapes: collections.Counter[tuple[str, str]], forms: collections.Counter[str]) -> str:
    """Describe how a field differs from what is usual; empty if it does not differ, or nothing is usual."""
    total = forms.total()
    if own.form == MISSING or not total:
        return ""
    name = own.path or "the sample"
    (form, shape), count = shapes.most_common(1)[0]
    if count >= USUAL * total:
        if (own.form, own.shape) == (form, shape):
            return ""
        return f"{name}: {own.form} {own.shape}".rstrip() + f", usually {form} {shape}".rstrip()
    form, count = forms.most_common(1)[0]
    return "" if count < USUAL * total or own.form == form else f"{name}: {own.form}, usually {form}"
