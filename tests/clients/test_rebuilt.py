"""Idioms of programs that make a loader from another one, or change one between epochs."""

from __future__ import annotations

import copy
import inspect
import pickle
import unittest.mock

import pytest
import torch
from idioms import SizedStream, Squares, Stream, plain, same_as_torch
from torch.utils import data as theirs
from torch.utils.data import BatchSampler, SequentialSampler

from nbloader import DataLoader

THREAD = {"num_workers": 1, "workers": "thread"}


def test_a_loader_is_made_from_the_public_attributes_of_another():
    """ignite's `update_dataloader`: `type(loader)(**public_attributes)`."""

    def idiom(loader_class, **how):
        loader = loader_class(Squares(), 4, shuffle=True, **how)
        names = [name for name in vars(loader) if not name.startswith("_")]
        kept = {name: getattr(loader, name) for name in names}
        for name in ("batch_size", "sampler", "drop_last", "batch_sampler", "dataset_kind"):
            kept.pop(name, None)
        other = type(loader)(**kept, batch_sampler=BatchSampler(SequentialSampler(loader.dataset), 3, drop_last=False))
        return list(other)

    assert same_as_torch(idiom, {}, THREAD) == [[0, 1, 4], [9, 16, 25], [36, 49]]


def test_a_loader_is_made_from_the_attributes_that_its_constructor_names():
    """Lightning: the sampler is replaced by a distributed one."""

    def idiom(loader_class, **how):
        class Custom(loader_class):
            def __init__(self, dataset, scale, *args, **kwargs):
                self.scale = scale
                super().__init__(dataset, *args, **kwargs)

        loader = Custom(Squares(), 3, batch_size=2, **how)
        parameters = {**inspect.signature(theirs.DataLoader.__init__).parameters}
        attributes = {name: getattr(loader, name) for name in parameters if hasattr(loader, name)}
        attributes.update(sampler=theirs.DistributedSampler(loader.dataset, 2, 0, shuffle=False), batch_sampler=None)
        attributes.pop("multiprocessing_context")
        return list(Custom(scale=loader.scale, **attributes)), attributes["collate_fn"] is loader.collate_fn

    same_as_torch(idiom, {})


def test_a_loader_is_copied_pickled_and_kept_in_a_module():
    def idiom(loader_class, **how):
        generator = torch.Generator().manual_seed(5)
        loader = loader_class(Squares(), 4, shuffle=True, generator=generator, **how)
        module = torch.nn.Module()
        module.loader = loader
        others = [
            copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader)), copy.deepcopy(module).loader,
        ]  # fmt: skip
        return [list(other) for other in others], list(module.loader), list(module.state_dict())

    same_as_torch(idiom, {}, THREAD)


def test_a_stream_is_copied_and_pickled():
    def idiom(loader_class, **how):
        loader = loader_class(SizedStream(), 4, drop_last=True, **how)
        assert len(loader) == 2
        return [list(copy.deepcopy(loader)), list(pickle.loads(pickle.dumps(loader))), list(loader)]

    same_as_torch(idiom, {}, THREAD)


def test_the_dataset_is_replaced_before_the_first_iteration():
    """Lightning Fabric's tests and others create a loader with a stand-in."""

    def idiom(loader_class, **how):
        loader = loader_class(None, 4, **how)
        loader._DataLoader__initialized = False
        loader.dataset = Squares()
        loader.sampler = SequentialSampler(loader.dataset)
        loader.batch_sampler = BatchSampler(loader.sampler, 4, drop_last=False)
        loader._DataLoader__initialized = True
        return list(loader), len(loader), type(loader.dataset).__name__

    same_as_torch(idiom, {}, THREAD)


def test_the_number_of_workers_is_assigned_between_epochs():
    """Debuggers and tests set `loader.num_workers = 0`; others give a loader workers when the machine is known."""
    with DataLoader(Squares(), 4, num_workers=1, prefetch_factor=4, timeout=90) as loader:
        expected = plain(list(loader))
        under_way = iter(loader)
        first = plain(next(under_way))
        loader.num_workers = 0
        assert plain(list(loader)) == expected
        assert [first, *plain(list(under_way))] == expected, "an iterator keeps its workers, as in torch"
        assert loader.prefetch_factor == 4, "as torch keeps it"
        loader.num_workers = 1
        iterator = iter(loader)
        assert len(iterator._workers) == 1
        assert plain(list(iterator)) == expected
        assert len(loader.events.batches()) == 8, "the statistics go on"


def test_timeout_and_order_are_assigned_between_epochs():
    with DataLoader(Squares(), 4, **THREAD) as loader:
        engine = loader._engine
        list(loader)
        assert loader._engine is engine
        loader.timeout, loader.in_order = 40, False
        assert sorted(plain(list(loader))) == [[0, 1, 4, 9], [16, 25, 36, 49]]
        assert loader._engine is not engine
        assert (loader._engine._supervisor.config.timeout, loader._engine._supervisor.config.in_order) == (40, False)


def test_a_loader_that_is_never_iterated_takes_any_dataset():
    def idiom(loader_class):
        class Odd:
            def __len__(self):
                return 3

        loaders = [loader_class(dataset) for dataset in (None, object(), Odd(), Odd, unittest.mock.Mock())]
        loaders.append(loader_class(Squares(), sampler=unittest.mock.Mock(spec=theirs.Sampler)))
        return [loader.batch_size for loader in loaders]

    same_as_torch(idiom)


def test_a_wrong_call_is_reported_as_python_reports_it():
    """Lightning parses the error, to say which argument a subclass passes twice."""

    def idiom(loader_class):
        with pytest.raises(TypeError, match=r".*__init__\(\) got multiple values .* '(\w+)'") as raised:
            loader_class(Squares(), dataset=Squares())
        return str(raised.value)

    same_as_torch(idiom)


def test_the_generator_of_a_loader_is_saved_and_restored():
    """Lightning and HF Trainer save `generator.get_state()` to draw an epoch again."""

    def idiom(loader_class, **how):
        generator = torch.Generator().manual_seed(2)
        loader = loader_class(Squares(), 3, shuffle=True, generator=generator, **how)
        list(loader)
        state = loader.generator.get_state()
        second = list(loader)
        loader.generator.set_state(state)
        again = list(loader)
        return second, again, generator.get_state().sum()

    second, again, _ = same_as_torch(idiom, {}, THREAD)
    assert second == again


def test_the_state_of_a_loader_has_the_shape_of_torchdatas():
    """`StatefulDataLoader`: state_dict() in mid-epoch, load_state_dict() into a new loader, iterate the rest."""
    with DataLoader(Squares(), 2) as loader, DataLoader(Squares(), 2) as other, DataLoader(Stream(), 2) as stream:
        iterator = iter(loader)
        next(iterator)
        other.load_state_dict(loader.state_dict())
        assert plain(list(other)) == plain(list(iterator))
        assert isinstance(stream.state_dict(), dict)
        with pytest.raises(ValueError, match="kind"):
            stream.load_state_dict(loader.state_dict())
