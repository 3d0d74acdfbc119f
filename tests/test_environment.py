"""What a worker takes over from the notebook's process, beside the dataset."""

from __future__ import annotations

import logging
import pickle
import warnings

import pytest

from nbloader.transport.environment import Environment

pytestmark = pytest.mark.unit


@pytest.fixture
def sent():
    """Returns a function that installs the environment of this process as a worker does, in a clean state."""

    def install():
        message = pickle.dumps(Environment.of_this_process())
        warnings.resetwarnings()
        pickle.loads(message).install()

    with warnings.catch_warnings():
        yield install


def test_filters_of_warnings_are_compared_as_python_compares_them(sent):
    warnings.resetwarnings()
    warnings.simplefilter("always")
    warnings.filterwarnings("ignore", "it is .* late", UserWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"noisy\.(?!loud)")
    sent()
    with warnings.catch_warnings(record=True) as shown:
        came = [("It is TOO late", "a"), ("so it is too late", "a"), ("x", "noisy.quiet"), ("y", "noisy.loud")]
        for text, module in [*came, ("z", "Noisy.quiet")]:
            warnings.warn_explicit(text, UserWarning, "file.py", 1, module=module)
    assert [str(warning.message) for warning in shown] == ["so it is too late", "y", "z"]


def test_levels_of_loggers_count_at_once_also_for_loggers_below_them(sent):
    parent, child = logging.getLogger("test_environment"), logging.getLogger("test_environment.child")
    parent.setLevel(logging.DEBUG)
    message = pickle.dumps(Environment.of_this_process())
    parent.setLevel(logging.ERROR)
    assert not child.isEnabledFor(logging.DEBUG)
    pickle.loads(message).install()
    assert child.isEnabledFor(logging.DEBUG)
    parent.setLevel(logging.NOTSET)
