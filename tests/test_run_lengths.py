"""Masks as run lengths: the texts are those of pycocotools 2.0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nbloader.explorer.run_lengths import MAX_PIXELS, decode, is_run_lengths

pytestmark = pytest.mark.unit

ELLIPSE = "b:5Q14L4M2N2N2O0O2N2O000O2O000O2O0000000O2O000000000001N100000001N10001N10001N2N101N2N2N3L4LX8"


def test_texts_of_pycocotools_are_decoded():
    box = np.zeros((5, 7), bool)
    box[1:4, 2:5] = True
    rows, columns = np.mgrid[:40, :60]
    ellipse = (rows - 20) ** 2 / 200 + (columns - 30) ** 2 / 500 < 1
    assert (decode({"size": [5, 7], "counts": b";320009"}) == box).all()
    assert (decode({"size": [40, 60], "counts": ELLIPSE}) == ellipse).all()
    assert decode({"size": [3, 4], "counts": "0<"}).all()


@given(arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_lengths_give_the_mask_that_they_were_counted_in(mask):
    flat = mask.T.ravel()
    changes = np.flatnonzero(np.diff(np.concatenate([[False], flat, [not flat[-1]]])))
    lengths = np.diff(np.concatenate([[0], changes]))
    assert (decode({"size": mask.shape, "counts": lengths.tolist()}) == mask).all()


@pytest.mark.parametrize(
    "content",
    [
        {"size": [2, 2], "counts": [1, 2]},
        {"size": [2, 2], "counts": [5, -1]},
        {"size": [2, 2], "counts": "0"},
        {"size": [MAX_PIXELS, 2], "counts": [2 * MAX_PIXELS]},
    ],
)
def test_lengths_that_do_not_fit_are_errors(content):
    with pytest.raises(ValueError, match=r"do not add up to|is too large"):
        decode(content)


def test_only_mappings_with_both_fields_are_masks():
    assert is_run_lengths({"size": [1, 1], "counts": [1]})
    assert not is_run_lengths([[1.0, 2.0]])
    assert not is_run_lengths({"counts": [1]})
