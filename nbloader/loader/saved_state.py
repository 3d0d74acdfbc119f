"""Checks of a saved state before anything is changed: `DataLoader.load_state_dict()`.

A state is a file that somebody else may have written, so every value is checked: its type, its range, and whether it
fits this loader. State that only user code can check (that of a custom sampler or an iterable dataset) is first loaded
into a copy.
"""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

import cloudpickle
import torch

from nbloader._util import rng
from nbloader._util.rng import PreservedRandomState
from nbloader._util.signals import raised_by_handler
from nbloader._util.state_dict import as_json, is_stateful
from nbloader.sampling import samplers
from nbloader.sampling.epoch_plan import EpochContext
from nbloader.sampling.resumable_sampler import generators, parts
from nbloader.sampling.samplers import FullBatches
from nbloader.sampling.source import SourceSampler
from nbloader.workers.worker_info import NotebookContext, WorkerInfo

log = logging.getLogger(__name__)
State = dict[str, Any]
_Check: TypeAlias = "Callable[[Any, str], Any]"
"""Takes a value and its path ("state_dict['epoch']['seed']"). Returns a copy of it, or raises ValueError."""

ROOT = "state_dict"
MAX_COUNT = 1 << 53
"""Largest number of batches, samples or epochs. JSON parsers that read numbers as doubles represent it exactly."""
MAX_SEED = (1 << 64) - 1
_MT19937_WORDS = 624
_NONE = type(None)


def checked_state(state: Any, identity: State, context: EpochContext) -> State:
    """Check a state and return a copy of it that `Checkpoint` can load without an error.

    Args:
        state: What `state_dict()` returned, possibly via JSON.
        identity: Fields of this loader that the state must match.
        context: What the next epoch would depend on.

    Raises:
        ValueError: The state belongs to another dataset or configuration, or is malformed. The message names the field.
        TypeError: It is not a dict, or the loader has no state.
    """
    if isinstance(context.index_sampler, SourceSampler):
        raise TypeError("a loader over a source has no state: only the source knows what it yields next")
    if not isinstance(state, dict):
        raise TypeError(f"load_state_dict takes what state_dict() returned, a dict, not {_short(state)}")
    version = state.get("nbloader")
    if type(version) is not int or version != identity["nbloader"]:
        raise ValueError(
            f"{ROOT}['nbloader']: this state has version {_short(version)}. This nbloader reads version "
            f"{identity['nbloader']}, which DataLoader.state_dict() writes"
        )
    result = {name: _entry(state, ROOT, name, _FIELDS[name]) for name in identity}
    for name, value in identity.items():
        if result[name] != value:
            raise ValueError(
                f"this state does not fit: {ROOT}[{name!r}] is {_short(result[name])}, here "
                f"{'len(dataset)' if name == 'length' else name} is {_short(value)}"
            )
    result.update(
        next_epoch=_entry(state, ROOT, "next_epoch", _count),
        own_seed=_entry(state, ROOT, "own_seed", _own_seed),
        draws_once=_entry(state, ROOT, "draws_once", _bool),
        first_seed=_entry(state, ROOT, "first_seed", _optional_seed),
    )
    epoch = _entry(state, ROOT, "epoch", _optional_dict)
    sources = generators(context.index_sampler, context.generator)
    stateful = next((part for part in parts(context.index_sampler) if is_stateful(part)), None)
    sampler_state = _entry(state, ROOT, "sampler_state", _anything)
    if epoch is None:
        result["generators"] = _entry(state, ROOT, "generators", _generators_of(sources))
        if stateful is not None and (sampler_state is not None or isinstance(stateful, FullBatches)):
            sampler_state = _sampler_state(sampler_state, f"{ROOT}['sampler_state']", stateful, context)
        result["sampler_state"] = sampler_state
        result["epoch"] = None
    else:
        result["generators"] = _entry(state, ROOT, "generators", _strings)
        result["sampler_state"] = _copied(sampler_state, f"{ROOT}['sampler_state']")
        check = _iterable_epoch if context.iterable else _map_epoch
        result["epoch"] = check(epoch, f"{ROOT}['epoch']", context, sources, stateful)
    return result


def _map_epoch(epoch: State, where: str, context: EpochContext, sources: list[Any], stateful: Any) -> State:
    result: State = {
        "number": _entry(epoch, where, "number", _count),
        "seed": _entry(epoch, where, "seed", _seed),
        "order": _entry(epoch, where, "order", _order),
        "generators": _entry(epoch, where, "generators", _generators_of(sources)),
    }
    if stateful is not None:
        result["sampler"] = _sampler_state(
            _entry(epoch, where, "sampler", _anything), f"{where}['sampler']", stateful, context
        )
    elif "sampler" in epoch:
        result["sampler"] = _copied(epoch["sampler"], f"{where}['sampler']")
    if "sampler_epoch" in epoch:
        result["sampler_epoch"] = _entry(epoch, where, "sampler_epoch", _signed)
    total = samplers.length(context.index_sampler)
    if isinstance(context.index_sampler, FullBatches):
        total = context.index_sampler.batches_with(len(result["sampler"]["carried"]))
    return {**result, **_progress(epoch, where, total)}


def _iterable_epoch(epoch: State, where: str, context: EpochContext, sources: list[Any], _stateful: Any) -> State:
    own = generators(None, context.generator)
    result: State = {
        "number": _entry(epoch, where, "number", _count),
        "seed": _entry(epoch, where, "seed", _seed),
        "samples": _entry(epoch, where, "samples", _count),
        "count": _entry(epoch, where, "count", _count),
        "generators": _entry(epoch, where, "generators", _generators_of(sources if len(own) == len(sources) else own)),
    }
    shards = _entry(epoch, where, "shards", _list)
    if len(shards) != max(1, result["count"]):
        raise ValueError(
            f"{where}['shards'] must have one entry per shard: it has {len(shards)} shards instead of {result['count']}"
        )
    result["shards"] = [_shard(shard, f"{where}['shards'][{number}]") for number, shard in enumerate(shards)]
    _try_dataset(result, where, context.dataset)
    return result


def _try_dataset(epoch: State, where: str, dataset: Any) -> None:
    """Load the states of a dataset into copies of it, made as for its shards. Iterator states are not checked."""
    states = [(shard, of_shard["state"]) for shard, of_shard in enumerate(epoch["shards"])]
    states = [(shard, saved[1]["dataset"]) for shard, saved in states if saved is not None and "dataset" in saved[1]]
    if not states:
        return
    try:
        pickled = cloudpickle.dumps(dataset)
    except Exception as error:  # the user's code; then the shard raises the error
        if raised_by_handler(error):
            raise
        log.debug("the state of %s is not checked: no copy can be made", type(dataset).__name__, exc_info=True)
        return
    shards, at, worker = epoch["count"], f"{where}['shards']", NotebookContext()
    with PreservedRandomState():
        for shard, state in states:
            trial = pickle.loads(pickled)
            if shards:
                worker.set_worker_info(WorkerInfo(shard, shards, epoch["seed"] + shard, trial))
            try:
                trial.load_state_dict(copy.deepcopy(state))
            except Exception as error:
                if raised_by_handler(error):
                    raise
                raise ValueError(refusal(f"{at}[{shard}]['state'][1]['dataset']", trial, error)) from error
            finally:
                worker.restore()


def _shard(shard: Any, where: str) -> State:
    shard = _dict(shard, where)
    result = _progress(shard, where, None)
    result["over"] = _entry(shard, where, "over", _bool)
    saved = _entry(shard, where, "state", _optional_list)
    if saved is not None:
        where = f"{where}['state']"
        if len(saved) != 2:  # noqa: PLR2004 - a pair
            raise ValueError(f"{where} must be a position and a state, not a list of {len(saved)}")
        if _count(saved[0], f"{where}[0]") > result["position"]:
            raise ValueError(f"{where}[0] must be up to the shard's position {result['position']}, not {saved[0]}")
        text, problem = as_json(saved[1], f"{where}[1]")
        if text is None:
            raise ValueError(problem)
        saved = [saved[0], copy.deepcopy(saved[1])]
        if not isinstance(saved[1], dict):
            raise ValueError(f"{where}[1] must be a dict, not {_short(saved[1])}")
        if set(saved[1]) not in ({"dataset"}, {"iterator"}):
            raise ValueError(f"{where}[1] must have one entry, 'dataset' or 'iterator', not {sorted(saved[1])[:3]}")
    result["state"] = saved
    return result


def _progress(state: State, where: str, total: int | None) -> State:
    """Check the batches that were delivered: all below `position`, and those of `beyond`."""
    position = _entry(state, where, "position", _count)
    if total is not None and position > total:
        raise ValueError(
            f"this state does not fit: {where}['position'] is position {position}, beyond the end of an epoch with "
            f"{total} batches"
        )
    beyond = _entry(state, where, "beyond", _list)
    for at, number in enumerate(beyond):
        if _count(number, f"{where}['beyond'][{at}]") <= position or (total is not None and number >= total):
            most = "" if total is None else f" and below {total}"
            raise ValueError(f"{where}['beyond'][{at}] must be a batch number above {position}{most}, not {number}")
    if len(set(beyond)) != len(beyond):
        raise ValueError(f"{where}['beyond'] must not repeat a batch number")
    return {"position": position, "beyond": list(beyond)}


# ---- the state of samplers and generators -------------------------------------------------------------------------


def _sampler_state(value: Any, where: str, stateful: Any, context: EpochContext) -> Any:
    if isinstance(stateful, FullBatches):
        return _rollover_state(value, where, stateful, context)
    value = _copied(value, where)
    _try_to_load(value, where, stateful, context)
    return value


def _rollover_state(value: Any, where: str, stateful: FullBatches, context: EpochContext) -> State:
    carried = _entry(_dict(value, where), where, "carried", _list)
    where = f"{where}['carried']"
    if len(carried) >= stateful.samples_at_once:
        raise ValueError(f"{where} must have fewer than {stateful.samples_at_once} indices, not {len(carried)}")
    length = samplers.length(context.dataset)
    by_position = type(stateful.sampler) in samplers.by_position()
    for at, index in enumerate(carried):
        if by_position and (type(index) is not int or not 0 <= index < (MAX_COUNT if length is None else length)):
            most = "of a sample" if length is None else f"below {length}"
            raise ValueError(f"{where}[{at}] must be an index {most}, not {_short(index)}")
        if index is None or (isinstance(index, int) and abs(index) > MAX_COUNT):
            raise ValueError(f"{where}[{at}] must be an index of a sample, not {_short(index)}")
    return {"carried": _copied(carried, where)}


def _try_to_load(value: Any, where: str, stateful: Any, context: EpochContext) -> None:
    """Load the state into a copy of a custom sampler, and draw one index from the copy."""
    dataset = {id(context.dataset): context.dataset}  # need not be copied
    drawing = True
    with PreservedRandomState():
        try:
            trial = copy.deepcopy(stateful, dataset)
        except Exception:  # noqa: BLE001 - code of the user's sampler: it holds something that cannot be copied
            trial, drawing = copy.copy(stateful), False
        try:
            trial.load_state_dict(copy.deepcopy(value))
            if drawing:
                next(iter(trial), None)
        except Exception as error:
            if raised_by_handler(error):
                raise
            raise ValueError(refusal(where, stateful, error)) from error


def refusal(where: str, stateful: Any, error: Exception) -> str:
    """Return the error message for a user-defined object that has refused its state."""
    text = f"{type(error).__name__}: {str(error)[:80]}"
    return f"{where} was refused by {type(stateful).__name__}.load_state_dict(): {text}"


def _generators_of(sources: list[Any]) -> _Check:
    def check(value: Any, where: str) -> list[str]:
        saved = _strings(value, where)
        if len(saved) != len(sources):
            raise ValueError(
                f"this state does not fit: {where} was saved with {len(saved)} generators, here there are "
                f"{len(sources)}"
            )
        for number, (source, text) in enumerate(zip(sources, saved, strict=True)):
            _generator(text, f"{where}[{number}]", source.device)
        return saved

    return check


def _generator(text: Any, where: str, device: Any = "cpu") -> str:
    """Check the state of a `torch.Generator`."""
    if not isinstance(text, str):
        raise _wrong(where, "a str, the state of a generator", text)
    try:
        rng.load_generator(torch.Generator(device), text)
    except ValueError as error:
        raise ValueError(f"{where}: {str(error)[:120]}") from error
    return text


def _order(value: Any, where: str) -> Any:
    """Check what an order is drawn from: a seed, or the state of the global generators."""
    if value is None or type(value) is int:
        return value if value is None else _seed(value, where)
    if not isinstance(value, dict):
        raise _wrong(where, "int or dict or None", value)
    result: State = {"torch": _entry(value, where, "torch", _generator)}
    if "random" not in value and "numpy" not in value:
        return result
    version, words, gauss = _entries(_entry(value, where, "random", _list), f"{where}['random']", 3)
    result["random"] = [
        _count(version, f"{where}['random'][0]"),
        _string(words, f"{where}['random'][1]"),
        None if gauss is None else _number(gauss, f"{where}['random'][2]"),
    ]
    keys, position, has_gauss, cached = _entries(_entry(value, where, "numpy", _list), f"{where}['numpy']", 4)
    if _count(position, f"{where}['numpy'][1]") > _MT19937_WORDS:  # NumPy would read beyond the end of its memory
        raise ValueError(f"{where}['numpy'][1] must be up to {_MT19937_WORDS}, not {position}")
    if _count(has_gauss, f"{where}['numpy'][2]") > 1:
        raise ValueError(f"{where}['numpy'][2] must be 0 or 1, not {has_gauss}")
    result["numpy"] = [
        _string(keys, f"{where}['numpy'][0]"), position, has_gauss, _number(cached, f"{where}['numpy'][3]"),
    ]  # fmt: skip
    with PreservedRandomState():
        try:
            rng.load_globals(result)
        except ValueError as error:
            raise ValueError(f"{where}: {str(error)[:120]}") from error
    return result


# ---- plain values -------------------------------------------------------------------------------------------------


def _entry(state: State, where: str, name: str, check: _Check) -> Any:
    if name not in state:
        raise ValueError(f"{where} has no {name!r}")
    return check(state[name], f"{where}[{name!r}]")


def _entries(value: list[Any], where: str, count: int) -> list[Any]:
    if len(value) != count:
        raise ValueError(f"{where} must have {count} entries, not {len(value)}")
    return value


def _of(*types: type) -> _Check:
    names = " or ".join("None" if t is _NONE else t.__name__ for t in types)

    def check(value: Any, where: str) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise _wrong(where, names, value)
        return value

    return check


def _integer(least: int, most: int) -> _Check:
    def check(value: Any, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(where, "int", value)
        if value < least:
            raise _wrong(where, "a number that is not negative" if least == 0 else f"at least {least}", value)
        if value > most:
            raise _wrong(where, f"up to {most}", value)
        return value

    return check


_dict, _optional_dict = _of(dict), _of(dict, _NONE)
_list, _optional_list = _of(list), _of(list, _NONE)
_string, _bool, _number = _of(str), _of(bool), _of(float, int)
_count, _seed = _integer(0, MAX_COUNT), _integer(0, MAX_SEED)
_signed, _own_seed = _integer(-MAX_COUNT, MAX_COUNT), _integer(-(1 << 63), MAX_SEED)


def _optional_count(value: Any, where: str) -> Any:
    return value if value is None else _count(value, where)


def _optional_seed(value: Any, where: str) -> Any:
    return value if value is None else _seed(value, where)


def _strings(value: Any, where: str) -> list[str]:
    return [_string(each, f"{where}[{number}]") for number, each in enumerate(_list(value, where))]


def _anything(value: Any, _where: str) -> Any:
    return value


def _copied(value: Any, where: str) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        if raised_by_handler(error):
            raise
        raise ValueError(f"{where} cannot be copied: {type(error).__name__}: {str(error)[:80]}") from error


_FIELDS: dict[str, _Check] = {
    "nbloader": _count,
    "kind": _string,
    "length": _optional_count,
    "batch_size": _optional_count,
    "chunk_size": _optional_count,
    "last_batch": _string,
    "sampler": _string,
}
"""The fields that identify the loader."""


def _wrong(where: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{where} must be {expected}, not {_short(value)}")


def _short(value: Any) -> str:
    """Format a value for a message: at most about 60 characters. A container is named by its type."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:  # noqa: PLR2004
        return f"an integer of {value.bit_length()} bits"
    if value is not None and not isinstance(value, (bool, int, float, str)):
        return type(value).__name__
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}..."  # noqa: PLR2004
