"""A Jupyter server and a browser for all browser tests, with a kernelspec for each version of ipykernel."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KERNELS = Path(sys.prefix) / "kernels"
"""Where `make` installs other versions of ipykernel, one folder each."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER_ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
SIZE: Any = {"width": 1300, "height": 1400}
"""Size of a page unless a test changes it, pixels."""
SERIAL = itertools.count()
TIMEOUT = 90_000
"""Timeout of all waits in the browser, milliseconds."""
TEST_TIMEOUT = 300
"""Timeout of a whole test, seconds: it waits several times, for a kernel that imports torch on a busy machine too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests in a browser more time than others."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT))


REPLIES = """async () => {
    const kernel = PANEL?.context.sessionContext.session?.kernel;
    const second = new Promise((resolve) => setTimeout(resolve, 1000, false));
    if (kernel?.connectionStatus !== 'connected') return second;
    const answer = kernel.requestKernelInfo().then((reply) => reply?.content.status === 'ok', () => second);
    return Promise.race([answer, second]);
}"""
"""Sends the kernel one request, and gives it a second to reply."""


class KernelSilent(Exception):
    """A kernel did not start, or JupyterLab did not notice."""


def missing(what: str) -> None:
    """Skip a browser test, or fail it where browser tests are required."""
    if os.environ.get("NBLOADER_REQUIRE_BROWSER") == "1":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """An installed Chromium or Chrome."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        missing("no Chromium or Chrome found; install one, for example: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(BROWSER_ARGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def window(browser: Any) -> Iterator[Any]:
    """One window for all tests, so that JupyterLab is fetched and compiled once."""
    context = browser.new_context(viewport=SIZE)
    context.set_default_timeout(TIMEOUT)
    yield context
    context.close()


class Server:
    """A running Jupyter server, which serves JupyterLab and Notebook 7.

    Args:
        root: Folder of the notebooks.
        python: The interpreter of the server.
        env: Further environment variables of the server.
        specs: For each kernel by name, the interpreter and the folders on its path; by default those of `kernels()`.
    """

    def __init__(
        self,
        root: Path,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        specs: Mapping[str, tuple[str, list[str]]] | None = None,
    ) -> None:
        self.root = root
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        folders = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        folders_of = {name: str(root / ".jupyter" / folder) for name, folder in folders.items()}
        for kernel, (interpreter, path) in (specs or _default_specs()).items():
            self._write_kernelspec(kernel, interpreter, path)
        self._settings = root / ".jupyter" / "settings" / "@jupyterlab" / "apputils-extension"
        self._page_config = root / ".jupyter" / "config" / "labconfig" / "page_config.json"
        self._write_setting("notification", {"fetchNews": "false", "checkForUpdates": False})
        self._write_policy()
        self._executor = ThreadPoolExecutor(4, "delete-kernel")
        self._deletions: dict[str, Future[None]] = {}
        self._log = (root / "server.log").open("w")
        self._process = subprocess.Popen(
            [
                *(python, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"),
                *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0"),
                *(
                    "--IdentityProvider.token=",
                    "--ServerApp.disable_check_xsrf=True",
                    f"--ServerApp.root_dir={root}",
                    "--LabApp.news_url=None",
                ),
                "--JupyterNotebookApp.expose_app_in_browser=True",
                "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            ],
            env=os.environ | folders_of | dict(env or {}),
            cwd=root,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def _write_policy(self) -> None:
        """Let pages load nothing from elsewhere; JupyterLab needs what is unsafe, anywidget the blob URLs."""
        policy = {
            "default-src": "'self'",
            "script-src": "'self' 'unsafe-inline' 'unsafe-eval' blob:",
            "style-src": "'self' 'unsafe-inline'",
            "img-src": "'self' data: blob:",
            "media-src": "'self' data: blob:",
            "font-src": "'self' data:",
            "connect-src": f"'self' ws://127.0.0.1:{self.port} data: blob:",
            "worker-src": "'self' blob:",
        }
        headers = {"Content-Security-Policy": "; ".join(f"{kind} {allowed}" for kind, allowed in policy.items())}
        path = self.root / ".jupyter" / "config" / "jupyter_server_config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ServerApp": {"tornado_settings": {"headers": headers}}}))

    def wait_until_ready(self) -> None:
        """Wait for the first response."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self.get("/api")
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(self.log()) from error
                time.sleep(0.1)  # there is nothing to wait on before the server listens

    def log(self) -> str:
        """The log of the server."""
        return (self.root / "server.log").read_text()

    def get(self, path: str) -> Any:
        """Send a request to the REST interface of the server."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def delete_kernels(self) -> None:
        """Have all kernels shut down, while the next test opens its page: it takes some of them seconds."""
        for kernel in self.get("/api/kernels"):
            if kernel["id"] not in self._deletions:
                self._deletions[kernel["id"]] = self._executor.submit(self._delete_kernel, kernel["id"])

    def reset_theme(self) -> None:
        """Begin the next page with the light theme, whatever was chosen."""
        (self._settings / "themes.jupyterlab-settings").unlink(missing_ok=True)

    def disable_extension(self, name: str) -> None:
        """Serve the pages that are opened from now on without an extension of JupyterLab."""
        self._page_config.parent.mkdir(parents=True, exist_ok=True)
        self._page_config.write_text(json.dumps({"disabledExtensions": {name: True}}))

    def lacks_extension(self) -> bool:
        """Whether the pages are served without an extension at present."""
        return self._page_config.exists()

    def enable_extensions(self) -> None:
        """Undo `disable_extension`."""
        self._page_config.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop the kernels, then the server."""
        try:
            self.delete_kernels()
            for deletion in self._deletions.values():
                deletion.result()
        finally:
            self._executor.shutdown()
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:  # it waits for a kernel that started at the same time
                self._process.kill()
                self._process.wait()
            self._log.close()

    def _delete_kernel(self, kernel_id: str) -> None:
        """Shut a kernel down."""
        request = urllib.request.Request(f"{self.url}/api/kernels/{kernel_id}", method="DELETE")
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def _write_setting(self, name: str, values: dict[str, Any]) -> None:
        self._settings.mkdir(parents=True, exist_ok=True)
        (self._settings / f"{name}.jupyterlab-settings").write_text(json.dumps(values))

    def _write_kernelspec(self, kernel: str, interpreter: str, path: list[str]) -> None:
        folder = self.root / ".jupyter" / "data" / "kernels" / kernel
        folder.mkdir(parents=True)
        spec = {
            "argv": [interpreter, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": kernel,
            "language": "python",
            "env": {"PYTHONPATH": os.pathsep.join([*path, str(ROOT), str(HERE)])},
        }
        (folder / "kernel.json").write_text(json.dumps(spec))


def kernels() -> list[str]:
    """Names of the kernels to test on: that of this environment, and those that `make` installed."""
    others = sorted(path.name for path in KERNELS.glob("ipykernel-*")) if KERNELS.is_dir() else []
    return ["current", *others]


def _default_specs() -> dict[str, tuple[str, list[str]]]:
    paths = {name: [] if name == "current" else [str(KERNELS / name)] for name in kernels()}
    return {name: (sys.executable, path) for name, path in paths.items()}


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[Server]:
    """The server; depends on the browser, so that no server is started without one."""
    server = Server(tmp_path_factory.mktemp("jupyter"))
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.close()


CLOSE_ALL = """async () => {
    if (document.querySelector('.jp-Dialog')) throw new Error('a dialog is open');
    for (const widget of [...jupyterapp.shell.widgets('main')]) {
        if (widget.context) widget.context.model.dirty = false;
        widget.dispose();
    }
    sessionStorage.clear();
    await jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'});
}"""
"""Closes all documents of JupyterLab, and forgets what a dashboard remembers in the page."""


class Notebook:
    """A notebook open in a page.

    Args:
        server: The server.
        page: A page: a new one, or one of JupyterLab whose documents are closed.
        app: "lab" or "notebook".
        path: The notebook's file.
        loaded: Whether the page shows JupyterLab already.
    """

    _PANEL = "[...jupyterapp.shell.widgets('main')].find(w => w.context?.sessionContext && w.content?.model)"

    def __init__(self, server: Server, page: Any, app: str, path: Path, loaded: bool = False) -> None:
        self.server, self.page, self.path = server, page, path
        # A separate workspace; otherwise JupyterLab would also open the documents of the previous test.
        prefix = {"lab": f"/lab/workspaces/{path.stem}/tree", "notebook": "/notebooks"}[app]
        self.url = f"{server.url}{prefix}/{path.name}"
        if loaded:
            self.page.evaluate("(path) => { jupyterapp.commands.execute('docmanager:open', {path}); }", path.name)
            self._wait_until_open()
        else:
            self.open()

    def open(self) -> None:
        """Load or reload the page; the kernel keeps running."""
        self.page.goto(self.url)
        self._wait_until_open()

    def _wait_until_open(self) -> None:
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        self.page.wait_for_function(f"() => {self._PANEL}?.context.sessionContext.session?.kernel?.status")

    def run_all(self) -> None:
        """Start all cells; does not wait for them."""
        self.wait_until_responsive()
        self.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells').catch(() => {}); }")

    def wait_until_responsive(self, seconds: float = TIMEOUT / 1000) -> None:
        """Wait until the kernel replies to JupyterLab, asking each second: a request may be lost while it starts.

        JupyterLab's kernel status is less reliable. It ignores replies to requests such as this one (jupyter_server's
        untracked_message_types), so if the first "idle" of a kernel is lost, as after a crash, the status stays
        "unknown" until a cell runs; and with subshells it reads "idle" while a cell is running.
        """
        deadline = time.monotonic() + seconds
        while not self.page.evaluate(REPLIES.replace("PANEL", self._PANEL)):
            if time.monotonic() > deadline:
                raise KernelSilent(
                    f"the kernel has not replied to JupyterLab for {seconds:.0f} s: {self._kernel_state()}; the"
                    f" server has {self.server.get('/api/kernels')}; the end of its log:\n{self.server.log()[-3000:]}"
                )

    def _kernel_state(self) -> Any:
        return self.page.evaluate(
            f"() => {{ const kernel = {self._PANEL}?.context.sessionContext.session?.kernel;"
            " return kernel && [kernel.status, kernel.connectionStatus]; }"
        )

    def run(self, cell: int) -> None:
        """Start one cell; does not wait for it."""
        self.page.evaluate(
            f"() => {{ {self._PANEL}.content.activeCellIndex = {cell};"
            " jupyterapp.commands.execute('notebook:run-cell').catch(() => {}); }"
        )

    def kernel_id(self) -> str:
        """Id of the kernel of the page."""
        kernel_id: str = self.page.evaluate(f"() => {self._PANEL}.context.sessionContext.session.kernel.id")
        return kernel_id

    def wait_until_run(self, cell: int) -> str:
        """Wait until a cell has ended, and return its outputs as JSON text.

        The status of the kernel does not help: with subshells it reads "idle" while a cell is running.
        """
        self.page.wait_for_function(
            f"() => {self._PANEL}?.content.widgets[{cell}]?.model.executionCount != null"
            f" && {self._PANEL}.content.widgets[{cell}].model.executionState !== 'running'"
        )
        return self.outputs(cell)

    def outputs(self, cell: int) -> str:
        """A cell's outputs as JSON text."""
        outputs: str = self.page.evaluate(
            f"() => JSON.stringify({self._PANEL}.content.widgets[{cell}].model.outputs.toJSON())"
        )
        return outputs

    def save(self) -> Any:
        """Save the notebook and read it from the disk."""
        self.page.evaluate(f"() => {self._PANEL}.context.save()")
        return nbformat.read(self.path, as_version=4)

    def shut_down_kernel(self) -> None:
        """Shut down the kernel as from the menu."""
        self.page.evaluate(f"() => {self._PANEL}.context.sessionContext.shutdown()")


SHOWN = 4000
"""Number of characters of a page that are printed when a test fails."""


class Pages:
    """The pages of the tests. One of JupyterLab is handed on: loading it takes 5 s, opening another notebook 0.5 s.

    Args:
        server: The server.
        window: The window of the pages.
    """

    def __init__(self, server: Server, window: Any) -> None:
        self._server, self._window = server, window
        self._spare: Any = None
        self._lab: list[Any] = []  # pages of the present test with JupyterLab and all its extensions

    def take(self, app: str) -> tuple[Any, bool]:
        """Return a page, and whether it shows JupyterLab already."""
        if app != "lab" or self._server.lacks_extension():
            return self._window.new_page(), False
        page, self._spare = self._spare, None
        self._lab.append(page or self._window.new_page())
        return self._lab[-1], page is not None

    def end_test(self, *, passed: bool) -> None:
        """Close all pages, but hand on the last one of JupyterLab if the test has passed; else print their texts."""
        for page in [] if passed else self._window.pages:
            with contextlib.suppress(Exception):  # the page has crashed, or was closed
                print(page.url, page.locator("body").inner_text(timeout=5000)[-SHOWN:], sep="\n")
        lab = [page for page in self._lab if not page.is_closed() and page.url.startswith(f"{self._server.url}/lab/")]
        self._lab.clear()
        if passed and lab and self._empty(lab[-1]):
            self._spare = lab[-1]
        for page in self._window.pages:
            if page is not self._spare:
                page.close()

    @staticmethod
    def _empty(page: Any) -> bool:
        """Make a page look as after loading; returns whether it does."""
        try:
            page.evaluate(CLOSE_ALL)
            page.locator("body[data-jp-theme-light='true']").wait_for(state="attached", timeout=5000)
        except Exception:  # whatever the test has left
            return False
        page.set_viewport_size(SIZE)
        page.emulate_media(reduced_motion="null", color_scheme="null")
        return True


@pytest.fixture(scope="package")
def pages(server: Server, window: Any) -> Pages:
    """The pages of all tests."""
    return Pages(server, window)


@pytest.fixture
def open_notebook(server: Server, pages: Pages, request: pytest.FixtureRequest) -> Iterator[Callable[..., Notebook]]:
    """A function that creates a notebook with the given cells and opens it."""

    def open_one(*cells: str, app: str = "lab", kernel: str = "current") -> Notebook:
        if kernel not in kernels():
            missing(f"{kernel} is not installed beside {sys.prefix}; make test installs it")
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata.kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
        for attempt in range(3):
            path = server.root / f"notebook{next(SERIAL)}.ipynb"
            nbformat.write(notebook, path)
            page, loaded = pages.take(app)
            opened = Notebook(server, page, app, path, loaded)
            try:
                opened.wait_until_responsive(20)
                opened.wait_until_responsive(20)  # a kernel of ipykernel 7.0 may reply once, and never again
                break
            except KernelSilent:  # nothing of nbloader has run yet: Jupyter itself failed, on a busy machine
                if attempt == 2:
                    raise
                opened.page.close()
        return opened

    failures = request.session.testsfailed
    yield open_one
    server.reset_theme()
    pages.end_test(passed=request.session.testsfailed == failures)
    server.delete_kernels()
