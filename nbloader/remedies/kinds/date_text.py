"""Dates in ISO format, read by a parser that knows every format."""

from __future__ import annotations

import ast
import datetime as dt
import re
from typing import NamedTuple

from nbloader.remedies.changes import root_of
from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site

ISO_FORMAT = re.compile(r"%Y-%m-%d(?:[T ]%H:%M(?::%S(?:\.%f)?)?)?")
"""Formats whose dates `datetime.fromisoformat` can read."""
DIGITS = {"%Y": 4, "%m": 2, "%d": 2, "%H": 2, "%M": 2, "%S": 2, "%f": 6}
"""Number of characters of each part of a date, with all its zeros."""
HELPER = '''\
def read_date(text):
    """As PARSER(text), faster if it is a date such as 2026-11-30 09:15:00."""
    try:
        return CLASS.fromisoformat(text)
    except (TypeError, ValueError):
        return PARSER(text)
'''
HELPER_FORMAT = '''\
def read_date(text):
    """As PARSER(text, FORMAT), faster if all digits are there."""
    if len(text) == LENGTH and text[10:11] == BETWEEN:
        try:
            return CLASS.fromisoformat(text)
        except ValueError:
            pass
    return PARSER(text, FORMAT)
'''
HELPER_STAMP = '''\
def read_date(value):
    """As PARSER(value), faster if it is one text."""
    return STAMP(value) if isinstance(value, str) else PARSER(value)
'''


class _Parser(NamedTuple):
    """A parser of dates that a function calls, and what to write instead."""

    text: str
    """Its name in the user's code."""
    helper: str


class DateText:
    """`dateutil.parser.parse(text)` and the like: `datetime.fromisoformat` reads ISO dates many times as fast."""

    name = "date-text"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        for call in (node for node in site.nodes if isinstance(node, ast.Call)):
            parser = _parser(site, call)
            if parser is not None:
                break
        else:
            return []
        alike = [node for node in site.body if isinstance(node, ast.Call) and _parser(site, node) == parser]
        return [
            Proposal(
                why=f"`{parser.text}` finds out the format of each date, or checks it, in Python.",
                instead="Read dates in ISO format with a function for that format; others are read as before.",
                code=site.rewritten(*(Edit(call, f"read_date({site.text(call.args[0])})") for call in alike)),
                helper=parser.helper,
                must_be_equal=True,
                short="Read dates with datetime.fromisoformat",
            )
        ]


def _parser(site: Site, call: ast.Call) -> _Parser | None:
    """Return the parser that a call calls; None if it calls none, or with options."""
    root = root_of(call.func)
    if call.keywords or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    if root is None or root.id not in site.function.__globals__:  # the helper stands outside of the function
        return None
    if len(call.args) == 1:
        return _any_format(site, call)
    return _one_format(site, call) if len(call.args) == 2 else None  # noqa: PLR2004 - a text and its format


def _any_format(site: Site, call: ast.Call) -> _Parser | None:
    """Return a parser that finds out the format."""
    text = site.text(call.func)
    if call in site.calls("dateutil.parser.parse", anywhere=True):
        name, imported = _class(site)
        return _Parser(text, f"{imported}\n\n{_filled(HELPER, text, CLASS=name)}".lstrip())
    if call in site.calls("pandas.to_datetime", anywhere=True):
        pandas = site.module("pandas", "pd")
        filled = _filled(HELPER_STAMP, text, STAMP=f"{pandas.name}.Timestamp")
        return _Parser(text, f"{pandas.helper}\n\n{filled}".lstrip())
    return None


def _one_format(site: Site, call: ast.Call) -> _Parser | None:
    """Return the parser of a constant format of ISO."""
    function, form = call.func, call.args[1]
    if not isinstance(function, ast.Attribute) or function.attr != "strptime":
        return None
    value = form.value if isinstance(form, ast.Constant) else site.target(form)
    if site.target(function.value) is not dt.datetime or not isinstance(value, str) or not ISO_FORMAT.fullmatch(value):
        return None
    example = re.sub("%.", lambda part: "0" * DIGITS[part[0]], value)
    return _Parser(
        site.text(function),
        _filled(
            HELPER_FORMAT, site.text(function), CLASS=site.text(function.value), FORMAT=repr(value),
            LENGTH=str(len(example)), BETWEEN=repr(example[10:11]),
        ),
    )  # fmt: skip


def _class(site: Site) -> tuple[str, str]:
    """Return the name of `datetime.datetime` in the user's code, and the import statement if it has none."""
    for name, value in site.function.__globals__.items():
        if value is dt.datetime:
            return name, ""
    module = site.module("datetime", "datetime")
    return f"{module.name}.datetime", module.helper


def _filled(helper: str, parser: str, **names: str) -> str:
    texts = {"PARSER": parser, **names}
    return re.sub(rf"\b({'|'.join(texts)})\b", lambda name: texts[name[0]], helper)


REMEDY = DateText()
