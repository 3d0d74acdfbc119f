"""Front ends in which messages or displays do not flow, with a fake kernel, and marimo's queues, with a fake marimo."""

from __future__ import annotations

import queue
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from anywidget import _util
from fake_loader import FakeLoader

from nbloader import DataLoader
from nbloader._platform import START_METHODS
from nbloader.dashboard import widget
from nbloader.explorer import cell_output
from nbloader.explorer import widget as explorer_widget
from nbloader.frontend import comm, marimo_messages, outputs, silence
from nbloader.loader import torch_compat

pytestmark = pytest.mark.unit
TIMEOUT = 90
NOTICE = "This page does not respond"


class Kernel:
    """A kernel whose main loop runs what it was given when a test says that no cell is running."""

    def __init__(self) -> None:
        self.io_loop = self
        self.due: list[Callable[[], object]] = []
        self.delays: list[float] = []
        self.cell: dict[str, Any] = {"content": {"allow_stdin": True}, "header": {"msg_id": "cell"}}

    def get_parent(self, _channel: str) -> dict[str, Any]:
        return self.cell

    def add_callback(self, function: Callable[[], object]) -> None:
        self.due.append(function)

    def call_later(self, delay: float, function: Callable[..., object], *args: Any) -> None:
        self.delays.append(delay)
        self.due.append(lambda: function(*args))

    def run_between_cells(self) -> None:
        due, self.due = self.due, []
        for function in due:
            function()


class Cells:
    """The outputs of the cells. Like Colab, it drops what threads other than that of the cell display."""

    def __init__(self) -> None:
        self.forms: list[str] = []
        self.metadata: list[dict[str, Any]] = []
        self.thread = threading.current_thread()

    def display(
        self,
        _name: str,
        _text: str,
        data: dict[str, str],
        metadata: dict[str, Any] | None = None,
        *,
        update: bool = False,
    ) -> None:
        if metadata:
            self.metadata.append(metadata)
        if threading.current_thread() is self.thread and "text/html" in data:
            self.forms.append(data["text/html"])


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    for module in (silence, outputs):
        monkeypatch.setattr(module, "get_ipython", lambda: SimpleNamespace(kernel=kernel, user_ns={}))
    monkeypatch.setattr(silence, "PATIENCE", 0.05)
    return kernel


@pytest.fixture
def cells(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Cells:
    cells = Cells()
    for module in (widget, outputs):
        monkeypatch.setattr(module, "display", cells.display)
    monkeypatch.setattr(widget, "_write_static_in_time", lambda: None)
    monkeypatch.setattr(widget, "SILENT_INTERVAL", 0.0)
    return cells


@pytest.fixture
def loader() -> Iterator[FakeLoader]:
    loader = FakeLoader(batches=12, pace=0.02)
    yield loader
    dashboard = widget._dashboards.get(loader)
    loader.close()
    if dashboard is not None:
        dashboard._publisher.thread.join(TIMEOUT)


def test_messages_that_do_not_come_are_noticed_in_the_loop_which_then_writes_each_form(
    loader: FakeLoader, cells: Cells
) -> None:
    widget.dashboard_of(loader).show()
    for _ in loader:
        pass
    written = [form for form in cells.forms if NOTICE in form]
    assert len(written) > 3
    assert any("batch 11 of 12" in form for form in written), "each form shows the current state of the loop"
    assert all("pip install anywidget" in form and "loader.restart_workers()" in form for form in written)
    widget._write_static()  # what runs after each cell
    assert NOTICE in cells.forms[-1]
    assert "batch 12 of 12" in cells.forms[-1]


def test_a_message_between_cells_ends_the_notice(loader: FakeLoader, cells: Cells) -> None:
    dashboard = widget.dashboard_of(loader)
    dashboard.show()
    for _ in loader:
        pass
    dashboard._on_message(dashboard.widget, {"kind": "ready", "view": "a"}, [])
    forms = len(cells.forms)
    for _ in loader:
        pass
    assert len(cells.forms) == forms, "only the live view is updated"
    dashboard.write_static()
    assert NOTICE not in cells.forms[-1]


def test_a_page_that_answers_in_time_is_never_called_silent(loader: FakeLoader, cells: Cells) -> None:
    dashboard = widget.dashboard_of(loader)
    dashboard.show()
    dashboard._on_message(dashboard.widget, {"kind": "asset", "name": "code"}, [])
    for _ in loader:
        pass
    dashboard.write_static()
    assert not any(NOTICE in form for form in cells.forms)


def test_without_a_loop_it_is_noticed_between_cells(
    loader: FakeLoader, cells: Cells, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 100.0
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=lambda: clock))
    widget.dashboard_of(loader).show()
    kernel.run_between_cells()
    clock += 30  # a cell has been running, so messages may still wait
    kernel.run_between_cells()
    assert NOTICE not in cells.forms[-1]
    clock += silence.RECHECK
    kernel.run_between_cells()
    assert NOTICE in cells.forms[-1]
    assert kernel.delays == [pytest.approx(silence.PATIENCE, abs=0.2), silence.RECHECK]


def test_a_program_that_executes_the_notebook_gets_no_advice(loader: FakeLoader, cells: Cells, kernel: Kernel) -> None:
    kernel.cell["content"]["allow_stdin"] = False  # nbconvert and papermill
    widget.dashboard_of(loader).show()
    for _ in loader:
        pass
    widget._write_static()
    assert not any(NOTICE in form for form in cells.forms)


def test_a_page_without_widgets_is_noticed_at_once_and_the_next_view_has_a_comm_again(
    loader: FakeLoader, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "PATIENCE", 1000.0)
    dashboard = widget.dashboard_of(loader)
    dashboard.show()
    first, model = dashboard.widget.comm, dashboard.widget.model_id
    first._closed = True  # what the kernel does when the page closes the comm
    for _ in loader:
        pass
    assert any(NOTICE in form for form in cells.forms)
    dashboard.show()
    assert dashboard.widget.comm is not first
    assert (dashboard.widget.model_id, dashboard.widget.closed) == (model, False)


def test_the_explorer_of_a_loader_says_so_while_the_loop_runs(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_output, "display", cells.display)
    monkeypatch.setattr(cell_output, "_write_static_in_time", lambda: None)
    monkeypatch.setattr(explorer_widget, "_shown", [])
    with DataLoader([float(number) for number in range(1000)], batch_size=1) as loader:
        view = explorer_widget.Explorer(loader, num_workers=1, workers="thread", seed=0, buffer=10)
        view.show()
        for _ in loader:
            time.sleep(0.01)
            if NOTICE in cells.forms[-1]:
                break
        view.close()
    assert sum(NOTICE in form for form in cells.forms) >= 1
    assert all("dataset[i]" in form for form in cells.forms if NOTICE in form)


@pytest.mark.parametrize(
    ("module", "names", "remedy"),
    [
        ("google.colab", {}, "enable_custom_widget_manager()"),
        (None, {"__vsc_ipynb_file__": "a.ipynb"}, "in a cell of its own"),
        (None, {}, "pip install anywidget"),
    ],
)
def test_the_remedy_is_that_of_the_front_end(
    module: str | None, names: dict[str, str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module:
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    monkeypatch.setattr(silence, "get_ipython", lambda: SimpleNamespace(user_ns=names))
    assert remedy in silence.advice("dashboard", "loader.dashboard()", "")


def test_colab_is_told_to_show_widgets_of_other_packages_and_where_their_manager_is(
    loader: FakeLoader, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    output = types.ModuleType("google.colab.output")
    output.enable_custom_widget_manager = lambda: calls.append(1)  # type: ignore[attr-defined]
    output._widgets = SimpleNamespace(_installed_url="https://manager")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    _util.enable_custom_widget_manager_once.cache_clear()
    widget.dashboard_of(loader).show()
    assert calls == [1]
    assert cells.metadata == [
        {"application/vnd.jupyter.widget-view+json": {"colab": {"custom_widget_manager": {"url": "https://manager"}}}}
    ]


class Command:
    """A message of a widget, as marimo queues it."""

    def __init__(self, model_id: str, token: str) -> None:
        self.model_id, self.token = model_id, token

    def into_comm_payload(self) -> dict[str, Any]:
        return {"content": {"data": {"method": "custom", "content": {"token": self.token}}}, "buffers": []}


class MarimoComm:
    """What the adapter uses of marimo's comm."""

    def __init__(self, got: list[str]) -> None:
        self._msg_callback = lambda msg: got.append(msg["content"]["data"]["content"]["token"])
        self.handle_msg = marimo_messages.handler_of_first_copies(self)


def test_in_marimo_our_messages_are_handled_once_in_a_busy_cell_and_others_wait_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got: list[str] = []
    ours = MarimoComm(got)
    waiting: queue.Queue[Command] = queue.Queue()
    messages = [Command("other", "1"), Command("ours", "2"), Command("other", "3"), Command("ours", "4")]
    for message in messages:
        waiting.put(message)
    monkeypatch.setattr(marimo_messages, "_messages", lambda: waiting)
    assert marimo_messages.pump({"ours": ours}) == 2
    assert got == ["2", "4"]
    assert [waiting.get_nowait().token for _ in range(waiting.qsize())] == ["1", "3"]
    ours.handle_msg(messages[1].into_comm_payload())  # from the queue of all requests, once the cell has ended
    ours.handle_msg(messages[3].into_comm_payload())
    assert got == ["2", "4"]
    ours.handle_msg(Command("ours", "5").into_comm_payload())
    assert got == ["2", "4", "5"]


def test_an_unknown_marimo_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    context = types.ModuleType("marimo._runtime.context")
    context.safe_get_context = lambda: SimpleNamespace(_kernel=SimpleNamespace())  # type: ignore[attr-defined]
    for name in ("marimo", "marimo._runtime"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "marimo._runtime.context", context)
    monkeypatch.setattr(comm, "in_marimo", lambda: True)
    assert comm.pump() == 0


def test_marimos_start_method_is_not_the_choice_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat.multiprocessing, "get_start_method", lambda *, allow_none: "spawn")
    assert torch_compat.start_method(None) == "spawn"
    monkeypatch.setattr(torch_compat, "in_marimo", lambda: True)
    assert torch_compat.start_method(None) == START_METHODS[0]
