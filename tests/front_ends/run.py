"""Try the dashboard and the explorer in each front end, and write the table of the documentation.

Each row gets an environment of its own in build/front-ends, with what `Row.packages` says; everything else is that of
the environment which runs this script, through a .pth file. A row that fails is in the table, with the reason.

    python tests/front_ends/run.py [--rows marimo,voila] [--docs docs/how-to/front-ends.md]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "browser")]

import conftest  # noqa: E402 - tests/browser
import scenario  # noqa: E402
from scenario import EXPLORE, HAS_FORM, HAS_LINES, LOOP, MAKE, STEPS, Results  # noqa: E402

BUILD = ROOT / "build" / "front-ends"
PAGE = ROOT / "docs" / "how-to" / "front-ends.md"
SECONDS = 180
"""Limit of a program without a browser, seconds."""
SHARE = Path(sys.prefix) / "share" / "jupyter"


@dataclass(frozen=True)
class Row:
    """A front end, or a kernel."""

    title: str
    run: Callable[[Row, str, Path, Any], Results]
    """Called with the row, its interpreter, an empty folder and the browser."""
    packages: tuple[str, ...] = ()
    """What pip installs for it."""
    versions: tuple[str, ...] = ()
    """Packages whose versions are in the table."""
    server: bool = False
    """Whether the Jupyter server runs in the row's environment, too."""
    disabled: str = ""
    """An extension that the Jupyter server lacks."""


def cells_for(folder: Path) -> list[str]:
    """Return the cells of the notebook."""
    return [MAKE.replace("{folder}", str(folder)), EXPLORE, LOOP]


def in_lab(row: Row, python: str, folder: Path, browser: Any) -> Results:
    """Try JupyterLab."""
    window = browser.new_context(viewport={"width": 1300, "height": 1400})
    window.set_default_timeout(scenario.FIRST)
    server = conftest.Server(folder, python if row.server else sys.executable, _shared(python), {"row": (python, [])})
    try:
        server.wait_until_ready()
        if row.disabled:
            server.disable_extension(row.disabled)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells_for(folder)])
        notebook.metadata.kernelspec = {"name": "row", "display_name": "row", "language": "python"}
        path = folder / "notebook.ipynb"
        nbformat.write(notebook, path)
        opened = conftest.Notebook(server, window.new_page(), "lab", path)
        opened.run_all()
        if row.disabled:
            results = scenario.use_plain_form(opened.page)
        else:
            results = scenario.LiveView(opened.page, lambda: (opened.save(), opened.open())).use()
        opened.page.screenshot(path=str(BUILD / f"{_name(row)}.png"))
        return results
    finally:
        (folder / "stop").touch()
        server.close()
        window.close()


def in_voila(row: Row, python: str, folder: Path, browser: Any) -> Results:
    """Try Voila. It shows the page when all cells have ended, so the loop runs in a thread."""
    cells = [*cells_for(folder)[:2], LOOP.replace("\nloop()", "\nthreading.Thread(target=loop, daemon=True).start()")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "row", "language": "python"}
    nbformat.write(notebook, folder / "notebook.ipynb")
    options = ("--no-browser", "--Voila.ip=127.0.0.1", "--show_tracebacks=True")
    command = lambda port: [python, "-m", "voila", str(folder / "notebook.ipynb"), f"--port={port}", *options]  # noqa: E731
    return _in_page(row, command, folder, browser, "/", start=None, env=_shared(python))


def in_marimo(row: Row, python: str, folder: Path, browser: Any) -> Results:
    """Try marimo's editor."""
    scenario.write_marimo(folder / "notebook.py", cells_for(folder))

    def start(page: Any) -> None:
        page.locator(".needs-run").first.wait_for()
        for _ in range(30):
            page.locator("[data-testid=run-button]").last.click()
            page.wait_for_timeout(1000)
            if not page.locator(".needs-run").count():
                return
        raise TimeoutError("marimo does not run the cells")  # it ignores clicks before the page is connected

    options = ("--headless", "--no-token", "--skip-update-check")
    command = lambda port: [python, "-m", "marimo", "edit", str(folder / "notebook.py"), f"--port={port}", *options]  # noqa: E731
    return _in_page(row, command, folder, browser, "/", start=start, reload=True)


def _in_page(
    row: Row,
    command: Callable[[int], list[str]],
    folder: Path,
    browser: Any,
    address: str,
    *,
    start: Callable[[Any], None] | None,
    reload: bool = False,
    env: dict[str, str] | None = None,
) -> Results:
    """Run a server of one page, and use the live views on it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    page = browser.new_page(viewport={"width": 1300, "height": 1800})
    page.set_default_timeout(scenario.FIRST)
    with (BUILD / f"{_name(row)}.log").open("w") as log, _running(command(port), folder, log, env):
        page.on("pageerror", lambda error: print(f"page: {error}", file=log, flush=True))
        page.on("console", lambda said: said.type == "error" and print(f"page: {said.text}", file=log, flush=True))
        _wait_for_port(port)
        page.goto(f"http://127.0.0.1:{port}{address}")
        if start is not None:
            start(page)
        try:
            return scenario.LiveView(page, page.reload if reload else None).use()
        finally:
            page.screenshot(path=str(BUILD / f"{_name(row)}.png"))
            (folder / "stop").touch()
            page.close()


@contextlib.contextmanager
def _running(command: list[str], folder: Path, log: Any, env: dict[str, str] | None = None) -> Iterator[None]:
    process = subprocess.Popen(
        command, cwd=folder, env=_path() | (env or {}), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()  # no request: Voila would start a kernel
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def executed(row: Row, python: str, folder: Path, _browser: Any) -> Results:
    """Try a program that executes a notebook: nbconvert, papermill."""
    cells = [
        "from nbloader import DataLoader, explore",
        "loader = DataLoader(list(range(400)), batch_size=4, num_workers=2)\nloader.dashboard()",
        "import time\nfor batch in loader: time.sleep(0.06)",
        "explore(list(range(30)))",
        "loader.close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "row", "language": "python"}
    nbformat.write(notebook, folder / "in.ipynb")
    command = [python, "-m", "papermill", "in.ipynb", "out.ipynb"]
    if not row.packages:
        command = [python, "-m", "nbconvert", "--to", "notebook", "--execute", "in.ipynb", "--output", "out.ipynb"]
    results: Results = {}

    def has_the_form() -> None:
        _call(command, folder)
        outputs = json.dumps(nbformat.read(folder / "out.ipynb", as_version=4))
        assert "batch 100 of 100" in outputs, "the last state is not in the notebook"
        assert 'nbl-silent\\"' not in outputs, "the notebook has advice for a page"

    scenario.attempt(results, HAS_FORM, has_the_form)
    return results


SCRIPT = """
from nbloader import DataLoader, explore
loader = DataLoader(list(range(40)), batch_size=4, num_workers=2)
loader.dashboard()
explore(list(range(30)))
print("batches:", sum(1 for batch in loader))
"""


def in_terminal(row: Row, python: str, folder: Path, _browser: Any) -> Results:
    """Try a script, or the same in IPython."""
    (folder / "script.py").write_text(SCRIPT)
    command = [python, "-m", "IPython", "script.py"] if row.title.startswith("IPython") else [python, "script.py"]
    results: Results = {}

    def goes_on() -> None:
        said = _call(command, folder)
        assert "batches: 10" in said, said[-300:]
        assert said.count("nbloader: the ") == 2, said[-300:]

    scenario.attempt(results, HAS_LINES, goes_on)
    return results


def _call(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=_path() | _shared(command[0]),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-160:]}")
    return done.stdout


def _path() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests" / "browser")))}


def _shared(python: str) -> dict[str, str]:
    """Return where a server in another environment finds its own files, and JupyterLab and its extensions."""
    own = Path(python).parent.parent / "share" / "jupyter"
    return {"JUPYTER_PATH": os.pathsep.join((str(own), str(SHARE))), "JUPYTERLAB_DIR": str(SHARE / "lab")}


LAB = ("ipykernel", "ipywidgets")
ROWS = (
    Row(
        "JupyterLab, the versions of Colab's kernel",
        in_lab,
        ("ipykernel==6.17.1", "ipywidgets==7.7.1", "jupyter-client==6.1.12"),
        (*LAB, "jupyter-client"),
    ),
    Row("JupyterLab, ipykernel 6.29", in_lab, ("ipykernel==6.29.5",), LAB),
    Row("JupyterLab, ipykernel 7.0", in_lab, ("ipykernel==7.0.1",), LAB),
    Row("JupyterLab, newest ipykernel", in_lab, (), LAB),
    Row(
        "JupyterLab with jupyter-collaboration",
        in_lab,
        ("jupyter-collaboration",),
        (*LAB, "jupyter-collaboration"),
        server=True,
    ),
    Row("JupyterLab whose server lacks anywidget", in_lab, (), LAB, disabled="anywidget"),
    Row("Voila", in_voila, ("voila",), ("voila", "ipykernel", "ipywidgets")),
    Row("marimo", in_marimo, ("marimo",), ("marimo", "anywidget")),
    Row("nbconvert", executed, (), ("nbconvert", "nbclient")),
    Row("papermill", executed, ("papermill",), ("papermill", "nbclient")),
    Row("IPython in a terminal", in_terminal, (), ("ipython",)),
    Row("a script", in_terminal, (), ()),
)  # fmt: skip


def _name(row: Row) -> str:
    return "".join(letter if letter.isalnum() or letter == "." else "-" for letter in row.title.lower())


def environment(row: Row) -> str:
    """Create the environment of a row, and return its interpreter."""
    if not row.packages:
        return sys.executable
    place = BUILD / _name(row)
    python = str(place / "bin" / "python")
    made = place / ".made"
    wanted = "\n".join(row.packages)
    if made.exists() and made.read_text() == wanted:
        return python
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    packages = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()
    )  # fmt: skip
    (packages / "base.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", *row.packages]
    subprocess.run(pip, check=True)
    made.write_text(wanted)
    return python


def versions(row: Row, python: str) -> dict[str, str]:
    """Return the versions that the row was tried with."""
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {row.versions!r}}}))"
    found: dict[str, str] = json.loads(
        subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    )
    return found


def try_row(row: Row, browser: Any) -> dict[str, Any]:
    """Return what is written about a row."""
    said: dict[str, Any] = {
        "title": row.title,
        "date": f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%d}",
        "versions": {},
    }
    with tempfile.TemporaryDirectory(prefix="nbloader-", ignore_cleanup_errors=True) as folder:
        try:
            python = environment(row)
            said["versions"] = versions(row, python)
            said["results"] = row.run(row, python, Path(folder), browser)
        except Exception as error:
            said["results"] = {}
            said["failed"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        finally:
            (Path(folder) / "stop").touch()
    return said


HEAD = """# Front ends that were tested

The dashboard and the explorer were tried in these front ends on {dates}, on {system}, with Python {python}, torch
{torch}, JupyterLab {lab} and Chromium. `make front-ends` writes this page. The tests of the project also run
Notebook {notebook}. [A remote machine, Colab, VS Code](remote-machines.md) says what was not tried.

## With live views

While a worker hangs in a busy cell, the view must show for how long. The controls *restart*, *pause*, *step*
and *resize*, the *explorer*, and a *reload* of the page must work.

"""


def page(rows: list[dict[str, Any]]) -> str:
    """Render the page."""
    import torch

    text = HEAD.format(
        dates=" and ".join(sorted({row["date"] for row in rows})),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        lab=importlib.metadata.version("jupyterlab"),
        notebook=importlib.metadata.version("notebook"),
    )
    text += _table([row for row in rows if _kind(row) == "live"], STEPS)
    text += "\nIn Voila the loop runs in a thread, and a reload starts a new kernel.\n"
    text += "\n## Without live views\n\n" + _table([row for row in rows if _kind(row) == "plain"])
    reasons = [
        f"- {row['title']}, {step}: {result}"
        for row in rows
        for step, result in [*row["results"].items(), *([("all", row["failed"])] if "failed" in row else [])]
        if result != "yes"
    ]
    text += "\n## What failed\n\n" + "\n".join(reasons) + "\n" if reasons else ""
    return text


def _kind(said: dict[str, Any]) -> str:
    row = next(row for row in ROWS if row.title == said["title"])
    return "live" if row.run in (in_lab, in_voila, in_marimo) and not row.disabled else "plain"


def _table(rows: list[dict[str, Any]], steps: tuple[str, ...] = ()) -> str:
    """Render what worked, compared with all `steps` if they are given, and the versions."""
    lines = ["| front end | what worked | versions |", "|---|---|---|"]
    for row in rows:
        worked = [step for step, result in row["results"].items() if result == "yes"]
        other = [step for step in steps if step not in worked]
        text = "all" if steps and not other else ", ".join(worked)
        if 0 < len(other) < len(worked):
            text = f"all but {', '.join(other)}"
        found = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        lines.append(f"| {row['title']} | {text or 'nothing'} | {found} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Try the rows, and write the page. Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="parts of the titles of rows, separated by commas; all by default")
    parser.add_argument("--docs", type=Path, default=PAGE, help="the page to write")
    options = parser.parse_args()
    chosen = [part.strip().lower() for part in options.rows.split(",") if part.strip()]
    BUILD.mkdir(parents=True, exist_ok=True)
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, conftest.BROWSERS)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(conftest.BROWSER_ARGS))
        for row in ROWS:
            if not chosen or any(part in row.title.lower() for part in chosen):
                said = try_row(row, browser)
                (BUILD / f"{_name(row)}.json").write_text(json.dumps(said, indent=1))
                print(row.title, said.get("failed", ""), said["results"], flush=True)
        browser.close()
    results = [BUILD / f"{_name(row)}.json" for row in ROWS]
    rows = [json.loads(result.read_text()) for result in results if result.exists()]
    options.docs.write_text(page(rows))
    return int(any("failed" in row or set(row["results"].values()) != {"yes"} for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
