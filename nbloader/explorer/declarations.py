"""What a dataset says about its samples: names of classes, a tokenizer, the folder of its files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nbloader._util.format import clean
from nbloader.explorer.kinds import Names

MAX_NESTED = 8
"""Maximum depth of nested datasets, as with a `Subset`."""
TOKENIZERS = ("tokenizer", "tok", "processor", "processing_class")
"""Names of attributes that may hold a tokenizer."""
ROOTS = ("root", "root_dir", "data_dir", "image_dir", "img_dir", "folder")
"""Names of attributes that may hold the folder to which paths are relative."""


def _nested(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those inside of it."""
    for _ in range(MAX_NESTED):
        yield dataset
        inner = getattr(dataset, "dataset", None)
        if inner is None or inner is dataset:
            return
        dataset = inner


def tokenizer_of(*owners: Any) -> Any:
    """Return the first tokenizer that a dataset or a collate function has: an object with `decode()`; None if none.

    Args:
        owners: What may have one, the most likely first.
    """
    for owner in owners:
        for part in _nested(owner):
            for name in TOKENIZERS:
                found = getattr(part, name, None)
                found = getattr(found, "tokenizer", found)
                if callable(getattr(found, "decode", None)) and not isinstance(found, (str, bytes)):
                    return found
    return None


def root_of(dataset: Any) -> str:
    """Return the folder of a dataset's files; "" if it names none."""
    for part in _nested(dataset):
        for name in ROOTS:
            found = getattr(part, name, None)
            if isinstance(found, (str, os.PathLike)):
                path = os.fspath(found)
                if isinstance(path, str) and path:
                    return path
    return ""


def class_names(dataset: Any) -> Names:
    """Return class names by field: torchvision's `classes`, scikit-learn's `target_names`, Hugging Face's features.

    Fields inside of lists have paths without positions: "objects.category".

    Args:
        dataset: Any dataset; for a `Subset`, the inner dataset is used.
    """
    for part in _nested(dataset):
        classes = part.get("target_names") if isinstance(part, Mapping) else getattr(part, "classes", None)
        if found := _names(classes):
            return {"*": found}
        features = getattr(part, "features", None)
        if isinstance(features, Mapping):
            return dict(_features("", features))
    return {}


def _features(path: str, feature: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield the class names of a Hugging Face feature and of those inside of it, by path."""
    names = _names(getattr(feature, "names", None))
    if names:
        yield path, names
    elif isinstance(feature, Mapping):
        for name, part in feature.items():
            yield from _features(f"{path}.{name}" if path else str(name), part)
    elif isinstance(feature, list) and len(feature) == 1:
        yield from _features(path, feature[0])
    elif getattr(feature, "feature", None) is not None:
        yield from _features(path, feature.feature)


def _names(value: Any) -> list[str]:
    """Return a list of class names; empty if the value is not one."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return []
    names = list(value)
    return [clean(name) for name in names] if all(isinstance(name, str) for name in names) else []
