"""Other packages with nbloader's class in the place of torch's: the programs of programs.py, on both.

The packages are those of the extra "clients"; what is not installed is skipped. The extra "frameworks" has its tests in
features/test_frameworks.py, but programs.py runs them too: `python programs.py nbloader accelerate lightning`.
"""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import subprocess
import sys

import pytest

PACKAGES = {
    "datasets": "datasets",
    "ignite": "pytorch-ignite",
    "skorch": "skorch",
    "torch_geometric": "torch_geometric",
    "torchdata": "torchdata",
    "webdataset": "webdataset",
}
"""By the name of the program: the distribution that it needs."""


def is_installed(program):
    try:
        importlib.metadata.distribution(PACKAGES[program])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _start(command, folder):
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def yielded():
    """What the programs yield on torch and on nbloader, by package. One process each, side by side."""
    installed = [program for program in PACKAGES if is_installed(program)]
    if not installed:
        return {}, {}
    folder = pathlib.Path(__file__).parent
    runs = [_start([sys.executable, "programs.py", which, *installed], folder) for which in ("torch", "nbloader")]
    outcomes = [(run, *run.communicate(timeout=230)) for run in runs]
    for run, _output, errors in outcomes:
        assert run.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for _run, output, _errors in outcomes]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("package", PACKAGES)
def test_a_program_of_a_package_yields_on_nbloader_what_it_yields_on_torch(package, yielded):
    if not is_installed(package):
        pytest.skip(f"{PACKAGES[package]} is not installed: pip install 'nbloader-torch[clients]'")
    on_torch, on_nbloader = yielded
    assert on_nbloader[package] == on_torch[package]
    assert on_torch[package]
