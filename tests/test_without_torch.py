"""NumPy output where torch is not installed, and neither are the packages of the dashboard."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).parent
REFUSE = '''
import sys

class Refuse:
    """A meta path finder: these packages are not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "bokeh", "ipywidgets", "anywidget", "tqdm"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
'''


def test_epochs_by_all_kinds_of_workers_without_torch(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(REFUSE)
    path = os.pathsep.join([str(tmp_path), str(TESTS.parent), str(TESTS)])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(TESTS / "without_torch.py")],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
