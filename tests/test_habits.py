"""What people do in notebooks: autoreload, `%run`, running all cells again, a restart of the kernel, two at a time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from datasets import wait_for
from jupyter_client import KernelManager
from jupyter_core.utils import ensure_event_loop

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
TIMEOUT = 90

MODULE = """
class Scaled:
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return scale(i)

def scale(i):
    return i * {}
"""
IMPORTS = "from nbloader import DataLoader\nfrom scaled import Scaled"
FIRST_OF_EACH = "print([batch.tolist() for batch in loader][0])"
BUSY = "import time\nfor batch in loader:\n    print('begun', flush=True)\n    time.sleep(600)"


class Notebook:
    """A notebook whose folder is `folder`: a real kernel."""

    def __init__(self, folder: Path) -> None:
        self.context = zmq.Context()
        self.manager = KernelManager(context=self.context)
        self.manager.start_kernel(cwd=str(folder), env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"})
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)

    def __call__(self, *lines: str) -> str:
        """Run a cell. Returns what it has printed."""
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = self.client.execute_interactive("\n".join(lines), output_hook=hook, timeout=TIMEOUT)
        assert reply["content"]["status"] == "ok", "\n".join(reply["content"].get("traceback", ()))
        return "".join(printed).strip()

    def begin(self, code: str, printed: str) -> None:
        """Start a cell, and wait until it has printed a text."""
        self.client.execute(code)
        while self.client.get_iopub_msg(timeout=TIMEOUT)["content"].get("text", "").strip() != printed:
            pass

    def processes(self) -> list[psutil.Process]:
        """All processes below the kernel."""
        return psutil.Process(self.manager.provisioner.pid).children(recursive=True)

    def restart(self) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel()
        self._connect()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.context.destroy()


@pytest.fixture(scope="module", autouse=True)
def _event_loop() -> None:
    """jupyter_client makes one for the thread that uses it, and keeps it."""
    ensure_event_loop()


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    (tmp_path / "scaled.py").write_text(MODULE.format(1))
    opened = Notebook(tmp_path)
    yield opened
    opened.close()


def save(path: Path, text: str) -> None:
    """Replace a file's content as an editor does, at a later time than before."""
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 2 * 10**9, before + 2 * 10**9))


def test_autoreload_brings_an_edited_module_into_the_next_epoch(notebook, tmp_path):
    notebook("%load_ext autoreload", "%autoreload 2", IMPORTS)
    notebook("loader = DataLoader(Scaled(8), 4, num_workers=2)")
    assert notebook(FIRST_OF_EACH) == "[0, 1, 2, 3]"
    notebook("epoch = iter(loader)", "first = next(epoch)")
    save(tmp_path / "scaled.py", MODULE.format(100))
    assert notebook("print(next(epoch).tolist())") == "[4, 5, 6, 7]", "an epoch has one version"
    assert notebook(FIRST_OF_EACH) == "[0, 100, 200, 300]"


def test_what_a_script_defined_can_be_used_after_run(notebook, tmp_path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        from nbloader import DataLoader

        class Data(list):
            def __getitem__(self, i):
                return super().__getitem__(i) + OFFSET

        OFFSET = 5
        loader = DataLoader(Data(range(8)), 4, num_workers=2)
        if __name__ == "__main__":
            print([batch.tolist() for batch in loader])
    """)
    )
    for _ in range(2):
        assert notebook("%run script.py") == "[[5, 6, 7, 8], [9, 10, 11, 12]]"
        assert notebook(FIRST_OF_EACH) == "[5, 6, 7, 8]"


def test_running_all_cells_again_leaves_nothing_of_the_first_time(notebook):
    for _ in range(4):
        notebook(IMPORTS)
        notebook("loader = DataLoader(Scaled(800), 4, num_workers=2, persistent_workers=True)")
        assert notebook("epoch = iter(loader)", "print(next(epoch).tolist())") == "[0, 1, 2, 3]"
        wait_for(lambda: len(notebook.processes()) == 3, "the zygote and the two workers of this time")


def test_the_example_of_the_explorer_prints_what_its_page_says(notebook):
    page = (ROOT / "docs/explore.md").read_text(encoding="utf-8")
    program, printed = re.search(r"```python\n(.*?)```\n\n<!-- output -->\n```text\n(.*?)```", page, re.DOTALL).groups()
    assert notebook(program) == printed.strip()


def test_a_restart_of_the_kernel_in_a_busy_cell_leaves_nothing(notebook):
    notebook(IMPORTS, "loader = DataLoader(Scaled(800), 4, num_workers=2)", "loader.dashboard()")
    notebook.begin(BUSY, "begun")
    wait_for(lambda: len(notebook.processes()) >= 3, "the zygote and two workers")
    before = notebook.processes()
    notebook.restart()
    wait_for(lambda: not any(process.is_running() for process in before))
    notebook(IMPORTS, "loader = DataLoader(Scaled(800), 4, num_workers=2)")
    assert notebook(FIRST_OF_EACH) == "[0, 1, 2, 3]"


def test_two_notebooks_load_at_the_same_time(notebook, tmp_path):
    other = Notebook(tmp_path)
    try:
        for each in (notebook, other):
            each("import nbloader, scaled", IMPORTS, "scaled.scale = nbloader.cached(scaled.scale)")
            each(
                "nbloader.configure_cache(disk=1 << 24, directory='cache')",
                "loader = DataLoader(Scaled(800), 4, num_workers=2)",
            )
            each("epoch = iter(loader)", "got = [next(epoch).tolist()]")
        for each in (notebook, other):
            each("got += [batch.tolist() for batch in epoch]")
            assert each("print(sum(got, []) == list(range(800)))") == "True"
    finally:
        other.close()


UPGRADED = """
import sys, warnings
from pathlib import Path
from nbloader import DataLoader, __version__

DataLoader([1])
installed = sys.argv[1] or __version__ + "+cu130"
folder = Path(f"nbloader_torch-{installed}.dist-info")
folder.mkdir()
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: nbloader-torch\\nVersion: {installed}\\n")
for _ in range(2):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DataLoader([1])
    print([str(warning.message) for warning in caught])
print(__version__)
"""


@pytest.mark.parametrize("installed", ["99.0", ""], ids=["another version", "another label of the same build"])
def test_an_upgrade_under_a_running_kernel_says_once_that_it_must_be_restarted(tmp_path, installed):
    (tmp_path / "nbloader").symlink_to(ROOT / "nbloader")
    program = tmp_path / "program.py"
    program.write_text(UPGRADED)
    command = [sys.executable, "-W", "error", str(program), installed]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    said, again, version = done.stdout.splitlines()
    text = f"['nbloader 99.0 was installed, but this process has imported {version}: restart the kernel']"
    assert said == (text if installed else "[]"), "torch 2.14.1 from PyPI calls itself 2.14.1+cu130"
    assert again == "[]"
