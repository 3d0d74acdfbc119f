"""To be told when a module is imported, however late."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, call: Callable[[], object]) -> None:
    """Call `call` once the module has been imported: at once where it has been already.

    Args:
        name: Full name of the module.
        call: Called on the importing thread, before the importing code goes on.
    """
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Watch(name, call))


class _Watch:
    """A finder that finds nothing itself, but sees what is looked for.

    Its base would be of `importlib.abc`, which takes workers 8 ms to import.
    """

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Have the others find the module, and add the call to its execution."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                self._call()

            spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec
