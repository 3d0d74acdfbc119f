"""The fixture that provides the simulated accelerator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import pytest
import simulator


@pytest.fixture
def simulated() -> Iterator[ModuleType]:
    """Switch on two simulated accelerators. Other tests of this process see none."""
    try:
        library = simulator.load()
    except simulator.NoCompiler as error:
        if os.environ.get("NBLOADER_REQUIRE_SIMULATOR"):
            raise
        pytest.skip(str(error))
    library.simulated_devices(simulator.DEVICES)
    library.simulated_speed(0, 0)
    library.simulated_limits(1 << 31, 1 << 31)
    yield simulator
    library.simulated_speed(0, 0)
    for index in range(simulator.DEVICES):
        simulator.synchronize(index)
    library.simulated_devices(0)
