"""Samples of other packages, and torch's nested and sparse tensors, through worker processes: the workloads of
tests/bench/real_samples.py, with torch's collate function or their own. Each gives what it gives on torch's loader.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import torch
from same import assert_same

from nbloader import DataLoader

BENCH = pathlib.Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))  # workers import the module, too

import real_samples  # noqa: E402

OF_TORCH = [name for name in real_samples.WORKLOADS if not real_samples.package_of(name)]
OF_PACKAGES = [name for name in real_samples.WORKLOADS if real_samples.package_of(name)]


# Torch warns that they are new.
new = pytest.mark.filterwarnings("ignore:.*(nested tensors|Sparse|sparse):UserWarning")


@new
@pytest.mark.parametrize("name", OF_TORCH)
def test_nested_and_sparse_tensors_are_those_of_torch(name):
    dataset, options = real_samples.WORKLOADS[name](40)
    expected = [real_samples.parts(batch) for batch in torch.utils.data.DataLoader(dataset, **options)]
    with DataLoader(dataset, num_workers=1, **options) as loader:
        assert_same([real_samples.parts(batch) for batch in loader], expected)


@new
def test_the_default_collate_function_refuses_them_as_torch_does():
    nested = real_samples.to_nested([torch.ones(2), torch.ones(3)])
    sparse = [real_samples.WORKLOADS[name](1).dataset[0] for name in ("sparse", "sparse_rows")]
    samples = [sample for sample in (nested, *sparse) for _ in range(2)]
    expected = []
    for first in (0, 2, 4):
        with pytest.raises(RuntimeError, match="not currently supported by the default collate_fn") as refused:
            torch.utils.data.default_collate(samples[first : first + 2])
        expected.append(str(refused.value))
    raised = []
    with DataLoader(samples, 2, num_workers=1) as loader:
        batches = iter(loader)
        for _ in expected:
            with pytest.raises(RuntimeError) as refused:
                next(batches)
            raised.append(str(refused.value))
    assert raised == expected


@pytest.fixture(scope="module")
def yielded():
    """What the workloads of installed packages yield on torch and on nbloader, by name. A process each: in that of the
    tests, `datasets` is another module.
    """
    installed = [name for name in OF_PACKAGES if real_samples.is_installed(name)]
    runs = [
        subprocess.Popen(
            [sys.executable, str(BENCH / "real_samples.py"), which, *installed],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) for which in ("torch", "nbloader")
    ]  # fmt: skip
    outcomes = [(run, *run.communicate(timeout=230)) for run in runs]
    for run, _output, errors in outcomes:
        assert run.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for _run, output, _errors in outcomes]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", OF_PACKAGES)
def test_samples_of_a_package_are_those_of_torch(name, request):
    if not real_samples.is_installed(name):
        pytest.skip(f"{real_samples.package_of(name)} is not installed: pip install 'nbloader-torch[clients]'")
    on_torch, on_nbloader = request.getfixturevalue("yielded")
    assert on_nbloader[name] == on_torch[name]
    assert len(on_torch[name]) >= 3
