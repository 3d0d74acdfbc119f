"""The arguments of DataLoader: wrong ones are refused with a message that helps, and each is declared once."""

from __future__ import annotations

import dataclasses
import inspect
import multiprocessing
import pathlib

import numpy as np
import pytest
import torch
from datasets import without_address
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from nbloader import DataLoader
from nbloader.loader import config
from nbloader.loader.config import LoaderConfig
from nbloader.workers.registry import Workers

pytestmark = pytest.mark.unit

DATA = list(range(10))
IN_ORDER = SequentialSampler(DATA)


class Endless(IterableDataset):
    def __iter__(self):
        yield 1


class WithoutLength:
    def __getitem__(self, i):
        return i


class WithoutItems:
    def __len__(self):
        return 3


WRONG = [
    # dataset
    (WithoutLength(), {"shuffle": True}, TypeError, "WithoutLength.*has no len()"),
    (Endless(), {"shuffle": True}, ValueError, "IterableDataset: expected unspecified shuffle option.*shuffle=True"),
    (Endless(), {"sampler": [1]}, ValueError, "IterableDataset: expected unspecified sampler option"),
    (Endless(), {"batch_sampler": [[1]]}, ValueError, "IterableDataset: expected unspecified batch_sampler option"),
    (Endless(), {"sampler": 3}, ValueError, "IterableDataset: expected unspecified sampler option.*sampler=3"),
    (Endless(), {"batch_sampler": False}, ValueError, "expected unspecified batch_sampler option.*batch_sampler=False"),
    (DATA, {"sampler": 3, "shuffle": True}, ValueError, "sampler.*mutually exclusive with shuffle"),
    (iter([]), {"shuffle": True}, ValueError, "expected unspecified shuffle option"),
    (Endless(), {"last_batch": "rollover"}, ValueError, "last_batch='rollover' is for map datasets"),
    ("photos/", {}, TypeError, r"dataset.*not the path 'photos/'.*ImageFolder\('photos/'\).*__getitem__.*i-th file"),
    (b"photos", {}, TypeError, r"dataset.*not the path b'photos'.*ImageFolder\('photos'\)"),
    (pathlib.Path("photos"), {}, TypeError, r"dataset.*not the path PosixPath.*ImageFolder\('photos'\)"),
    # batching
    (DATA, {"batch_size": 0}, ValueError, "batch_size.*positive.*batch_size=0"),
    (DATA, {"batch_size": -3}, ValueError, "batch_size.*positive.*batch_size=-3"),
    (DATA, {"batch_size": 2.5}, ValueError, "batch_size.*2.5"),
    (DATA, {"batch_size": "8"}, ValueError, "batch_size.*'8'"),
    (DATA, {"batch_size": True}, ValueError, "batch_size.*True"),
    (DATA, {"batch_size": None, "drop_last": True}, ValueError, "batch_size=None.*drop_last"),
    (DATA, {"sampler": IN_ORDER, "shuffle": True}, ValueError, "sampler.*mutually exclusive with shuffle"),
    *[
        (DATA, {"batch_sampler": BatchSampler(IN_ORDER, 2, False), **other}, ValueError, "batch_sampler.*" + name)
        for name, other in (
            ("batch_size=4", {"batch_size": 4}),
            ("shuffle=True", {"shuffle": True}),
            ("sampler=given", {"sampler": IN_ORDER}),
            ("drop_last=True", {"drop_last": True}),
        )
    ],
    (DATA, {"sampler": 5}, TypeError, "sampler.*5"),
    (DATA, {"batch_sampler": 5}, TypeError, "batch_sampler.*5"),
    # workers
    (DATA, {"num_workers": -1}, ValueError, "num_workers.*non-negative, not -1"),
    (DATA, {"num_workers": 1.0}, TypeError, "num_workers.*int.*1.0"),
    (DATA, {"num_workers": "2"}, TypeError, "num_workers.*int.*'2'"),
    (DATA, {"num_workers": True}, TypeError, "num_workers.*int.*True"),
    (DATA, {"timeout": -1}, ValueError, "timeout.*non-negative, not -1"),
    (DATA, {"timeout": "1"}, TypeError, "timeout.*'1'"),
    (DATA, {"timeout": None}, TypeError, "timeout.*None"),
    (DATA, {"timeout": float("nan"), "num_workers": 1}, ValueError, "timeout.*nan"),
    (DATA, {"timeout": float("inf"), "num_workers": 1}, ValueError, "timeout.*at most 2147483 seconds, not inf"),
    (DATA, {"prefetch_factor": 2}, ValueError, "prefetch_factor.*num_workers > 0.*prefetch_factor=2"),
    (DATA, {"prefetch_factor": -1, "num_workers": 1}, ValueError, "prefetch_factor.*-1"),
    (DATA, {"prefetch_factor": 1.5, "num_workers": 1}, TypeError, "prefetch_factor.*1.5"),
    (DATA, {"prefetch": -2, "num_workers": 1}, ValueError, "prefetch.*-2"),
    (DATA, {"prefetch": "2", "num_workers": 1}, TypeError, "prefetch.*'2'"),
    (DATA, {"persistent_workers": True}, ValueError, "persistent_workers.*num_workers > 0"),
    (DATA, {"multiprocessing_context": "spawn"}, ValueError, "multiprocessing_context.*num_workers=0"),
    (DATA, {"multiprocessing_context": "bad", "num_workers": 1}, ValueError, "should specify a valid.*spawn.*'bad'"),
    (DATA, {"multiprocessing_context": 7, "num_workers": 1}, TypeError, "multiprocessing_context.*valid context.*7"),
    (DATA, {"max_restarts": -1}, ValueError, "max_restarts.*-1"),
    (DATA, {"max_restarts": None}, TypeError, "max_restarts.*None"),
    # functions and the rest
    (DATA, {"collate_fn": 3}, TypeError, "collate_fn must be callable.*3"),
    (DATA, {"worker_init_fn": "f"}, TypeError, "worker_init_fn must be callable.*'f'"),
    (DATA, {"generator": 42}, TypeError, "generator.*torch.Generator.*42"),
    (DATA, {"output": "jax"}, ValueError, "output must be one of 'torch', 'numpy', not 'jax'"),
    (DATA, {"output": ["torch"]}, ValueError, "output"),
    (DATA, {"device": "warp drive"}, ValueError, "device.*'warp drive'"),
    (DATA, {"device": 1.5}, ValueError, "device.*1.5"),
    (DATA, {"upload_ahead": -1}, ValueError, "upload_ahead.*-1"),
    (DATA, {"workers": "threads"}, ValueError, "workers must be one of 'process', 'thread', .*not 'threads'"),
    (DATA, {"workers": 4}, TypeError, "workers must be 'process', 'thread'.* or .*not 4.*num_workers=4"),
    (DATA, {"on_error": "ignore"}, ValueError, "on_error must be 'raise', 'skip' or a function.*'ignore'"),
    (DATA, {"on_timeout": "ignore"}, ValueError, "on_timeout must be one of 'raise', 'restart', not 'ignore'"),
    (DATA, {"last_batch": "drop"}, ValueError, "last_batch must be one of 'keep', 'discard', 'rollover', not 'drop'"),
    (DATA, {"names": "ab"}, TypeError, "names must be a sequence of strings.*'ab'"),
    # names of arguments
    *[
        (DATA, {wrong: 4}, TypeError, rf"DataLoader.__init__\(\) got an unexpected .*'{wrong}'; did you mean {right}\?")
        for wrong, right in {
            "batchsize": "batch_size", "batchSize": "batch_size", "bs": "batch_size", "nun_workers": "num_workers",
            "n_workers": "num_workers", "numworkers": "num_workers", "n_jobs": "num_workers", "shufle": "shuffle",
            "collate": "collate_fn", "batchify_fn": "collate_fn", "pin_mem": "pin_memory",
        }.items()
    ],
    (DATA, {"xyz": 4}, TypeError, r"DataLoader.__init__\(\) got an unexpected keyword argument 'xyz'$"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dataset", "arguments", "error", "message"), WRONG, ids=[f"{type(w[0]).__name__} {w[1]}"[:60] for w in WRONG]
)
def test_a_wrong_argument_is_refused_at_construction(dataset, arguments, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        DataLoader(dataset, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"batch_size": None, "sampler": [3, 1]},
        {"sampler": iter([1, 2])},
        {"batch_sampler": [[1, 2], [3]]},
        {"shuffle": True, "generator": torch.Generator()},
        {"num_workers": 1, "prefetch_factor": 0},
        {"num_workers": 1, "prefetch": 0},
        {"num_workers": 1, "timeout": 1.5},
        {"num_workers": 2, "multiprocessing_context": multiprocessing.get_context("spawn")},
        {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
        {"prefetch": 0},
        {"device": "cpu"},
        {"device": torch.device("cpu")},
        {"pin_memory_device": "", "in_order": False},
    ],
    ids=without_address,
)
def test_valid_arguments_are_accepted(arguments):
    DataLoader(DATA, **arguments).close()


@pytest.mark.parametrize("two", [np.int64(2), np.float32(2), torch.tensor(2)], ids=["int64", "float32", "tensor"])
def test_a_number_of_seconds_may_be_one_of_numpy_or_torch(two):
    with DataLoader(DATA, num_workers=1, timeout=two) as loader:
        assert loader.timeout == 2


def test_positional_arguments_are_those_of_torch():
    generator = torch.Generator()
    loader = DataLoader(DATA, 4, False, None, None, 2, list, False, True, 3, int, None, generator)
    with loader:
        assert (loader.batch_size, loader.num_workers, loader.collate_fn) == (4, 2, list)
        assert (loader.drop_last, loader.timeout, loader.worker_init_fn) == (True, 3, int)
        assert loader.generator is generator
        assert len(loader) == 2


def test_a_device_that_does_not_exist_is_refused():
    if getattr(torch, "accelerator", torch.cuda).is_available():
        pytest.skip("there is an accelerator here")
    with pytest.raises(RuntimeError, match=r"device='cuda' was requested.*no such accelerator"):
        DataLoader(DATA, device="cuda")


def test_pinning_without_an_accelerator_warns_once():
    if getattr(torch, "accelerator", torch.cuda).is_available():
        pytest.skip("there is an accelerator here")
    with pytest.warns(UserWarning, match="pin_memory=True has no effect") as caught:
        loader = DataLoader(DATA, 2, pin_memory=True)
    assert [w.filename for w in caught] == [__file__]
    with loader:
        assert next(iter(loader)).tolist() == [0, 1]


def test_without_a_dataset_and_with_too_many_arguments_it_is_a_type_error_of_dataloader():
    with pytest.raises(TypeError, match=r"DataLoader.__init__\(\) missing a required argument: 'dataset'"):
        DataLoader()
    with pytest.raises(TypeError, match=r"DataLoader.__init__\(\) too many positional arguments"):
        DataLoader(DATA, *range(20))


def test_the_dataset_cannot_be_replaced_by_assignment():
    with DataLoader(DATA) as loader, pytest.raises(ValueError, match=r"reload\(dataset\)"):
        loader.dataset = [1]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (None, "dataset.*NoneType"),
        (WithoutItems, r"class WithoutItems itself.*WithoutItems\(\.\.\.\)"),
        (WithoutItems(), "dataset.*__getitem__.*WithoutItems"),
        (WithoutLength(), "WithoutLength has no __len__.*sampler"),
        (object(), "dataset.*object has neither"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_without_samples_is_refused_when_it_is_iterated(dataset, message, workers):
    with DataLoader(dataset, num_workers=workers) as loader, pytest.raises(TypeError, match=message):
        iter(loader)  # not before: programs create loaders with a stand-in and never iterate them


@pytest.mark.parametrize("empty", [[], torch.empty(0, 3), torch.utils.data.TensorDataset(torch.empty(0))])
@pytest.mark.parametrize("arguments", [{}, {"num_workers": 1, "workers": "thread"}])
def test_an_empty_dataset_gives_an_empty_epoch_with_a_warning(empty, arguments):
    with DataLoader(empty, 2, **arguments) as loader:
        assert len(loader) == 0
        with pytest.warns(UserWarning, match=r"no batches: the dataset \((list|Tensor|TensorDataset)\) is empty"):
            assert list(loader) == []
    with pytest.raises(ValueError, match="num_samples"):  # of torch's RandomSampler
        DataLoader(empty, 2, shuffle=True)


# ---- one declaration per argument


DECLARED = [field for field in dataclasses.fields(LoaderConfig) if field.init]


def test_the_signature_is_that_of_the_configuration():
    for callable_ in (DataLoader, DataLoader.__init__):
        parameters = [p for p in inspect.signature(callable_).parameters.values() if p.name != "self"]
        assert [p.name for p in parameters] == [field.name for field in DECLARED]
        for parameter, field in zip(parameters, DECLARED, strict=True):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            assert parameter.default == default, field.name
            assert (parameter.kind is parameter.KEYWORD_ONLY) == field.kw_only, field.name
    assert inspect.signature(DataLoader).parameters["workers"].annotation == Workers


def test_each_argument_is_documented_in_the_docstring():
    arguments, _, _ = inspect.getdoc(DataLoader).partition("\nRaises:")
    for field in DECLARED:
        assert f"\n    {field.name}: " in arguments
        words = field.metadata["declared"].doc.split()
        assert " ".join(words) in " ".join(arguments.split())
    assert all(len(line) <= 120 for line in arguments.splitlines())


def test_a_loader_keeps_its_arguments_as_attributes_and_the_fixed_ones_cannot_be_assigned():
    chosen = {"prefetch": 3, "num_workers": 2, "upload_ahead": 2, "names": ["x"], "max_restarts": 7, "timeout": 5}
    with DataLoader([(1,), (2,)], 2, **chosen) as loader:
        for field in DECLARED:
            if field.name != "shuffle":  # as in torch
                assert hasattr(loader, field.name), field.name
        assert {name: getattr(loader, name) for name in chosen} == chosen
        assert {"batch_size", "dataset", "sampler", "prefetch", "workers"} <= config.FIXED
        for name in config.FIXED:
            with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
                setattr(loader, name, getattr(loader, name))


def test_a_loader_made_from_another_keeps_every_argument():
    chosen = {
        "num_workers": 2, "prefetch": 3, "upload_ahead": 2, "names": ["x"], "max_restarts": 7, "timeout": 5,
        "workers": "thread", "output": "numpy", "dispatch": "round_robin", "last_batch": "rollover",
        "auto_reload": True, "chunk_size": 1, "on_error": "skip", "on_timeout": "restart", "in_order": False,
        "collate_fn": list, "worker_init_fn": print, "generator": torch.Generator(), "prefetch_factor": 1,
    }  # fmt: skip
    with DataLoader([(1,), (2,)], 2, **chosen) as loader, DataLoader.from_torch(loader, max_restarts=8) as other:
        assert {name: getattr(other, name) for name in chosen} == chosen | {"max_restarts": 8}
        assert other.sampler is loader.sampler
    with DataLoader(DATA, num_workers=1) as loader, DataLoader.from_torch(loader) as other:
        assert other.prefetch_factor == 2
        assert vars(other)["prefetch_factor"] is None, "the window of both adapts itself"


def test_the_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LoaderConfig(DATA).batch_size = 3
