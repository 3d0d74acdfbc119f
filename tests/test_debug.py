"""`loader.debug`: the prompt comes where it should, with the sample's own seed, and leaves nothing changed."""

from __future__ import annotations

import io
import pdb  # noqa: T100 - what is tested
import random
import re
import signal
import sys
import types

import numpy as np
import pytest
import torch
import waits
from datasets import Augmented, Numbers
from torch.utils.data import Subset

from nbloader import DataLoader, ReplayError
from nbloader.workers import debugger


class Faulty(Augmented):
    """Sample 7 draws, and raises two calls below."""

    def __getitem__(self, i):
        drawn = random.random()
        return self.finish(i, drawn)

    def finish(self, i, drawn):
        if i == 7:
            raise ValueError(f"faulty {i}")
        return i, drawn


class AtOnce(Numbers):
    def __getitems__(self, indices):
        drawn = random.random()
        return [i + drawn for i in indices]


@pytest.fixture
def at_prompt(monkeypatch, capsys):
    """Call a function with commands for the debugger; what it printed."""

    def debug(call, *commands):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{command}\n" for command in commands)))
        state, tracing, handler = states(), sys.gettrace(), signal.getsignal(signal.SIGINT)
        assert call() is None
        assert (states(), sys.gettrace(), signal.getsignal(signal.SIGINT)) == (state, tracing, handler)
        assert sys._getframe().f_trace is None
        assert not sys.stdin.read(), "all commands were used"
        return capsys.readouterr().out

    return debug


def states():
    return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()


def failing(num_workers=0, dataset=None, **options):
    """A loader, after an epoch that may have failed."""
    torch.manual_seed(2)
    loader = DataLoader(dataset or Faulty(20), 5, shuffle=True, num_workers=num_workers, **options)
    batches = []
    epoch = iter(loader)
    while True:
        try:
            batches.append(next(epoch))
        except StopIteration:
            return loader, batches
        except ValueError as error:
            batches.append(error)


def test_the_call_that_an_error_names_stops_at_the_first_line_and_where_it_raises(at_prompt):
    loader, batches = failing(num_workers=1)
    with loader:
        number, error = next((n, batch) for n, batch in enumerate(batches) if isinstance(batch, ValueError))
        note = error.__notes__[-1]
        assert note == f"to debug this sample: loader.debug(epoch=0, batch={number}, index=7)"
        call = note.partition(": ")[2]
        said = at_prompt(lambda: eval(call, {"loader": loader}), "p 'first', i", "w", "c", "p 'last', i", "up", "q")
        assert "-> drawn = random.random()" in said
        assert "('first', 7)" in said
        assert "-> raise ValueError" in said
        assert "ValueError: faulty 7" in said
        assert "('last', 7)" in said
        assert "-> return self.finish(i, drawn)" in said
        assert "replay.py" not in said, "the frames of nbloader are not shown"
        assert loader.replay(0, (number + 1) % 4).batch


def test_a_sample_has_the_numbers_that_were_delivered(at_prompt):
    loader, batches = failing()
    with loader:
        number = next(n for n, batch in enumerate(batches) if not isinstance(batch, ValueError))
        index = batches[number][0][3].item()
        said = at_prompt(lambda: loader.debug(index), "n", "p 'drawn', drawn", "random.random()", "c")
        assert f"('drawn', {batches[number][1][3].item()!r})" in said
        said = at_prompt(lambda: loader.debug(index, post_mortem=True))
        assert said == f"sample {index} of batch {number}, epoch 0, raised no error\n"


def test_post_mortem_and_quit(at_prompt):
    loader, batches = failing(on_error="skip")
    with loader:
        assert not any(isinstance(batch, ValueError) for batch in batches)
        said = at_prompt(lambda: loader.debug(7, post_mortem=True), "p 'last', i", "q")
        assert "-> raise ValueError" in said
        assert "drawn = random.random()" not in said
        assert "ValueError" not in at_prompt(lambda: loader.debug(7), "q")


def test_the_dataset_inside_a_subset(at_prompt):
    inner = Faulty(40)
    loader, batches = failing(dataset=Subset(inner, range(20, 40)))
    with loader:
        index = batches[0][0][2].item() - 20
        said = at_prompt(lambda: loader.debug(index, epoch=0, batch=0), "p 'inner', i, self.n", "n", "p drawn", "c")
        assert f"('inner', {index + 20}, 40)" in said
        assert repr(batches[0][1][2].item()) in said


def test_a_dataset_that_fetches_batches_stops_in_getitems(at_prompt):
    loader, batches = failing(dataset=AtOnce(20))
    with loader:
        said = at_prompt(
            lambda: loader.debug(epoch=0, batch=1, index=loader.replay(0, 1).indices[2]), "n", "p drawn", "c"
        )
        assert repr(batches[1][0].item() % 1)[:10] in said


def collate(samples):
    return samples[99]


def test_a_batch_that_cannot_be_collated(at_prompt):
    with DataLoader(Numbers(10), 5, collate_fn=collate) as loader:
        with pytest.raises(IndexError) as raised:
            list(loader)
        assert raised.value.__notes__[-1] == "to debug this batch: loader.debug(epoch=0, batch=0)"
        said = at_prompt(lambda: loader.debug(epoch=0, batch=0), "p samples", "q")
        assert "-> return samples[99]" in said
        assert "[0, 1, 2, 3, 4]" in said
    loader, _batches = failing(dataset=Numbers(10))
    with loader:
        assert at_prompt(lambda: loader.debug(batch=1)) == "batch 1 of epoch 0 raised no error\n"


def test_what_cannot_be_debugged_says_why():
    with DataLoader(list(range(10)), 5) as loader:
        list(loader)
        with pytest.raises(ReplayError, match=r"list.__getitem__ is not written in Python"):
            loader.debug(3)
        with pytest.raises(
            ReplayError, match=r"sample 3 is not in batch 1 of epoch 0, which has samples \[5, 6, 7, 8, 9\]"
        ):
            loader.debug(3, batch=1)
        with pytest.raises(ReplayError, match="epoch 0 has no sample 10"):
            loader.debug(10)
        with pytest.raises(TypeError, match="the index of a sample, or the number of a batch"):
            loader.debug()


def test_samples_that_are_awaited_cannot_be_debugged():
    with DataLoader(waits.Raises(10, 7), 5) as loader:
        with pytest.raises(ValueError, match="bad sample 7") as raised:
            list(loader)
        assert not any("loader.debug" in note for note in raised.value.__notes__)
        with pytest.raises(ReplayError, match="cannot step through samples of an asynchronous dataset"):
            loader.debug(7)


def test_an_error_before_the_sample_is_raised():
    with DataLoader(Faulty(10), 10) as loader:
        with pytest.raises(ValueError, match="faulty 7"):
            list(loader)
        with pytest.raises(ValueError, match="faulty 7") as raised:
            loader.debug(9)
        assert raised.value.__notes__ == ["raised by sample 7, which precedes 9 in the batch"]


def test_a_breakpoint_of_the_user_does_not_outlive_the_call(at_prompt):
    loader, batches = failing(dataset=Augmented(20))
    with loader:
        index = batches[0][0][0].item()
        said = at_prompt(lambda: loader.debug(index), "b random.choice", "c")
        assert re.search(r"Breakpoint \d+ at", said)


def test_the_debugger_of_ipython_where_it_is_running(monkeypatch, at_prompt):
    class OfIPython(pdb.Pdb):
        def __init__(self, **options):
            super().__init__(**options)
            self.prompt = "of IPython> "

    shell = types.SimpleNamespace(debugger_cls=OfIPython)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    said = at_prompt(lambda: debugger.debug(lambda: Faulty(9).finish(7, 0)) and None, "q")
    assert "of IPython> " in said
