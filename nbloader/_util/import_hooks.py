"""Calls a function when a module is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, call: Callable[[], object]) -> None:
    """Call a function once a module has been imported; immediately if it already has been.

    Args:
        name: Full name of the module.
        call: The function. It runs on the importing thread, before the import statement returns.
    """
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Watch(name, call))


class _Watch:
    """A meta path finder that wraps the loader of one module; the finders after it find the module.

    It stays in `sys.meta_path`: another thread may be iterating over the list, and would skip a finder if one were
    removed. It does not subclass `importlib.abc.MetaPathFinder`, because importing that class would take each worker
    8 ms.
    """

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._name = name
        self._call = call
        self._called = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders find, with a loader that also calls the function."""
        if fullname != self._name or self._called:
            return None
        spec = self._found_by_others(path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                if not self._called:  # otherwise the module was imported again
                    self._called = True
                    self._call()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec

    def _found_by_others(self, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find_spec is None else find_spec(self._name, path, target)
            if spec is not None:
                return spec
        return None
