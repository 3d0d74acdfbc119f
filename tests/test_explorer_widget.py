"""The Python half of the explorer: messages in, cards out, the selection, the static form, the end."""

from __future__ import annotations

import dataclasses
import gc
import io
import queue
import random
import sys
import threading
import time
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import waits
from datasets import wait_for
from torch.utils.data import Subset

from nbloader import DataLoader, get_worker_info
from nbloader.errors import NbloaderError
from nbloader.explorer import assets, cell_output, conversation, static, widget
from nbloader.explorer.reader import ReadSample, Request, SampleReader
from nbloader.frontend.live import LiveWidget

TIMEOUT = 90


class Numbers:
    """Samples whose text is markup; one raises."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        if index == 2:
            raise ValueError("<b>no</b>")
        return {"text": f"<script>{index}</script>", "n": index, "image": np.full((20, 20, 3), index, np.uint8)}


@pytest.fixture
def sent(monkeypatch):
    """What goes to the browser."""
    messages: queue.Queue[dict[str, Any]] = queue.Queue()
    pages: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(
        LiveWidget, "send", lambda _self, message, buffers=None: messages.put(message | {"data": buffers})
    )
    monkeypatch.setattr(
        cell_output, "display", lambda _name, _text, data, update=False: pages.put(data.get("text/html", ""))
    )
    monkeypatch.setattr(cell_output, "_write_static_in_time", lambda: None)
    monkeypatch.setattr(widget, "_shown", [])
    messages.pages = pages
    return messages


@pytest.fixture
def view(sent):
    explorer = open_explorer(Numbers())
    say(explorer, kind="ready")
    assert following(sent, "state")["total"] == 30
    yield explorer
    explorer.close()


def open_explorer(x):
    return widget.Explorer(x, num_workers=1, workers="thread", seed=0, buffer=20)


def say(explorer, **message):
    explorer._conversation._on_message({"view": "a", **message})


def following(sent, kind):
    """Wait for the next message of a kind."""
    while True:
        message = sent.get(timeout=TIMEOUT)
        if message["kind"] == kind:
            return message


def cards(sent, *indices):
    """Wait for the cards of these samples."""
    found = {}
    while set(indices) - set(found):
        message = following(sent, "cards")
        found |= {card["index"]: card | {"data": message["data"]} for card in message["cards"]}
    return found


def test_what_is_on_screen_is_sent_with_its_pictures_and_again_to_a_view_that_asks_again(view, sent):
    say(view, kind="want", indices=[1, 2, 99, -1], screen=[1, 2])
    first = cards(sent, 1, 2)
    assert first[1]["data"][first[1]["first"] + first[1]["fields"][-1]["picture"]][:4] == b"\x89PNG"
    assert first[2]["error"] == "ValueError: <b>no</b>"
    assert view.failed == [2]
    say(view, kind="want", indices=[1, 2], screen=[1, 2], view="b")
    message = following(sent, "cards")
    assert (message["to"], [card["index"] for card in message["cards"]]) == ("b", [1, 2])


def test_a_new_view_gets_the_first_samples_without_asking(view, sent):
    view._fetcher.want(conversation.BEGIN, [0, 1])  # as `show()` does
    cards(sent, 0, 1)
    say(view, kind="ready", view="b")
    following(sent, "state")
    message = following(sent, "cards")
    assert (message["to"], [card["index"] for card in message["cards"]]) == ("b", [0, 1])


def test_one_sample_in_full_and_its_draws_go_to_the_view_that_asked(view, sent):
    say(view, kind="open", index=3, draw=0, choices={})
    message = following(sent, "sample")
    assert (message["to"], message["index"]) == ("a", 3)
    assert next(field for field in message["fields"] if field["path"] == "text")["text"] == "<script>3</script>"
    say(view, kind="draws", index=3, count=3)
    assert {following(sent, "draw")["draw"] for _ in range(3)} == {0, 1, 2}


def test_a_sample_is_opened_from_python_also_in_a_view_that_comes_later(view, sent):
    view.open(7)
    assert following(sent, "show")["index"] == 7
    say(view, kind="ready", view="b")
    assert following(sent, "state")["opened"] == 7
    with pytest.raises(IndexError, match="there is no sample 30"):
        view.open(30)


def test_the_selection_is_the_same_on_both_sides(view, sent):
    say(view, kind="select", indices=[4, 2, 400])
    assert view.selected == [4, 2]
    view.selected = range(3)
    assert following(sent, "selected")["indices"] == [4, 2]
    assert following(sent, "selected")["indices"] == [0, 1, 2]
    good = view.good()
    assert type(good) is Subset
    assert list(good.indices) == list(range(3, 30))
    with pytest.raises(IndexError, match="there is no sample 30"):
        view.selected = [30]
    assert view.selected == [0, 1, 2]


def test_lists_of_samples(view, sent):
    say(view, kind="want", indices=[0, 2, 4], screen=[0, 2, 4])
    cards(sent, 0, 2, 4)
    view.selected = [9]
    for name, expected in (("failed", {2}), ("selected", {9}), ("slowest", {0, 2, 4}), ("delivered", set())):
        say(view, kind="order", name=name)
        order = following(sent, "order")
        assert set(np.frombuffer(order["data"][0]).astype(int).tolist()) == expected
    say(view, kind="order", name="nonsense")
    say(view, kind="nonsense")
    view.widget._handle_custom_msg({"kind": "asset", "name": "../../secret"}, [])
    assert sent.empty()
    view.widget._handle_custom_msg({"kind": "asset", "name": "code"}, [])
    assert following(sent, "asset")["data"][0][:2] == b"\x1f\x8b"


def test_what_was_looked_at_is_a_table_in_python_that_filters_the_list(view, sent):
    assert view.rows() == []
    assert len(view.to_pandas()) == 0
    say(view, kind="want", indices=[4, 2, 0], screen=[4, 2, 0])
    cards(sent, 0, 2, 4)
    frame = view.to_pandas()
    assert frame.index.tolist() == [0, 2, 4]
    assert frame["n"].tolist()[::2] == [0, 4]
    assert frame["error"].notna().tolist() == [False, True, False]
    assert frame["seconds"].min() >= 0
    assert view.filter(lambda row: row["n"] > 1) == [4]
    order = following(sent, "order")
    assert (order["to"], order["name"], np.frombuffer(order["data"][0]).tolist()) == ("a", "filtered", [4])


class Costly:
    """Every fourth sample is of a class that takes longer."""

    classes = ("day", "night")

    def __len__(self):
        return 100

    def __getitem__(self, index):
        night = index % 4 == 0
        time.sleep(0.01 * night)
        return {"label": int(night), "n": index}


def test_a_scan_shows_which_class_makes_an_epoch_slow(sent):
    explorer = open_explorer(Costly())
    say(explorer, kind="ready")
    with pytest.raises(KeyError, match="label"):
        explorer.costs("label")
    assert explorer.scan(40) == 40
    assert explorer.scan(1000) == 100
    night, day = explorer.costs("label")
    assert (night["value"], night["samples"], night["share_of_samples"]) == ("night", 25, 0.25)
    assert night["share_of_time"] > 0.5 > day["share_of_time"]
    assert [message["kind"] for message in sent.queue if message["kind"] == "cards"] == []  # nothing was on screen
    explorer.close()


def test_a_scan_of_a_dataset_that_no_worker_can_use_raises(sent):
    explorer = open_explorer(Numbers())
    explorer._fetcher._source = dataclasses.replace(explorer._source, worker_init_fn=lambda _worker: 1 / 0)
    with pytest.raises(NbloaderError, match="division by zero"):
        explorer.scan(5)
    explorer.close()


def test_a_defect_of_the_explorer_ends_a_scan_with_its_error_and_the_next_scan_works(sent, monkeypatch, caplog):
    explorer = open_explorer(Numbers())
    with monkeypatch.context() as patched:
        patched.setattr("nbloader.explorer.table._row", lambda *_: 1 / 0)
        with pytest.raises(NbloaderError, match="The explorer failed: ZeroDivisionError"):
            explorer.scan(5)
    assert "the explorer's thread failed" in caplog.text
    assert explorer.scan(5) == 5
    explorer.close()


def generator():
    """The generator of `random` in a worker thread, elsewhere the global one."""
    info = get_worker_info()
    return random if info is None or info.rng is None else info.rng.random_generator


class Drawing(Numbers):
    """Samples draw a number, in a worker thread from its generator; one raises after it has drawn."""

    def __getitem__(self, index):
        drawn = generator().random()
        if index == 2:
            raise ValueError("no")
        return {"n": index, "drawn": drawn}


def test_a_sample_as_the_loader_delivered_it_beside_its_draws(sent):
    with DataLoader(Drawing(), 10, shuffle=True, on_error="skip") as loader:
        delivered = [
            {n.item(): v.item() for b in loader for n, v in zip(b["n"], b["drawn"], strict=True)} for _ in "ab"
        ]
        explorer = open_explorer(loader)
        say(explorer, kind="ready")
        say(explorer, kind="draws", index=5, count=2)
        batches = following(sent, "delivered")
        assert batches["problem"] == ""
        for epoch, batch, position in batches["batches"]:
            assert loader.replay(epoch, batch).sample(position) == {"n": 5, "drawn": delivered[epoch][5]}
        came = {}
        while len(came) < 4:
            message = following(sent, "draw")
            drawn = next(field["value"] for field in message["fields"] if field["path"] == "drawn")
            came[message["delivery"][0] if message["delivery"] else f"draw {message['draw']}"] = drawn
        assert {0: delivered[0][5], 1: delivered[1][5]}.items() <= came.items()
        assert came["draw 0"] != came["draw 1"]
        explorer.close()
    dataset = Drawing()
    dataset.own = random.Random(1)
    with DataLoader(dataset, 10, on_error="skip") as loader:
        list(loader)
        explorer = open_explorer(loader)
        say(explorer, kind="ready")
        say(explorer, kind="draws", index=1, count=1)
        assert "random generator of its own" in following(sent, "delivered")["problem"]
        explorer.close()


class Turns(waits.Augmented):
    """Samples are awaited."""

    async def __getitem__(self, index):
        _index, drawn, *_rest = await super().__getitem__(index)
        return {"n": index, "drawn": drawn}


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "skip"},
        {"on_error": "skip", "chunk_size": 5},
        {"on_error": lambda _index, _error: {"n": -1, "drawn": random.random()}},
        {"dataset": Turns(30, 3)},
        {"dataset": Turns(30, 3), "num_workers": 2},
        {"dataset": Subset(Drawing(), range(3, 30))},
        {"dataset": [{"n": i, "drawn": i / 7} for i in range(30)]},
    ],
)
def test_a_batch_with_every_sample_as_it_was_delivered(sent, monkeypatch, options):
    with DataLoader(**{"dataset": Drawing(), "batch_size": 10, "shuffle": True, **options}) as loader:
        epochs = [list(loader), list(loader)]
        explorer = open_explorer(loader)
        indices = loader.replay(1, 1).indices
        with monkeypatch.context() as patched:
            patched.setattr("IPython.get_ipython", lambda: types.SimpleNamespace(kernel=True))
            batch = explorer.batch(1, 1)
        say(batch, kind="ready")
        state = following(sent, "state")
        assert (state["title"], state["total"], state["debuggable"], state["fixed"]) == (
            "Batch 1 of epoch 1",
            10,
            False,
            True,
        )
        with pytest.raises(TypeError, match="samples of one batch"):
            batch.good()
        while len(state["notes"]) < 2:  # until the worker has made the batch
            state = following(sent, "state")
        assert "\N{MULTIPLICATION SIGN}".join(map(str, epochs[1][1]["drawn"].shape)) in state["notes"][0]
        assert f"dataset indices: {', '.join(map(str, indices))}" in state["notes"][1]
        say(batch, kind="open", index=-1, draw=0, choices={})
        whole = {field["path"]: field for field in following(sent, "sample")["fields"]}
        assert whole["drawn"]["shape"] == list(epochs[1][1]["drawn"].shape)
        say(batch, kind="want", indices=list(range(10)), screen=list(range(10)))
        shown = cards(sent, *range(10))
        came = [{f["path"]: f["value"] for f in shown[at].get("fields", ())} for at in range(10)]
        delivered = {n.item(): v.item() for n, v in zip(epochs[1][1]["n"], epochs[1][1]["drawn"], strict=True)}
        assert {made["n"]: made["drawn"] for made in came if made} == {n: v for n, v in delivered.items() if n >= 0}
        assert batch.failed == [position for position, index in enumerate(indices) if index == 2 and not came[position]]
        batch.close()
        explorer.close()
    explorer = open_explorer(Numbers())
    with pytest.raises(TypeError, match="DataLoader that still exists"):
        explorer.batch(0, 0)
    explorer.close()


class Unseeded(Numbers):
    def __getitem__(self, index):
        return {"n": index, "drawn": np.random.default_rng().random()}


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_a_batch_that_cannot_be_reproduced_says_so(sent, monkeypatch, options):
    with DataLoader(Unseeded(), 10, **options) as loader:
        list(loader)
        monkeypatch.setattr("IPython.get_ipython", lambda: types.SimpleNamespace(kernel=True))
        batch = loader.replay(0, 1).explore()
        say(batch, kind="ready")
        state = following(sent, "state")
        while len(state["notes"]) < 2:  # until the worker has made the batch
            state = following(sent, "state")
        assert "Batch 1 of epoch 0 cannot be reproduced: made twice from the same seed, it differs" in state["notes"][0]
        batch.close()


def test_a_sample_in_the_debugger_has_the_numbers_of_the_explorer(sent, monkeypatch, capsys):
    explorer = open_explorer(Drawing())
    say(explorer, kind="ready")
    say(explorer, kind="draws", index=3, count=2)
    seen = {}
    while len(seen) < 2:
        message = following(sent, "draw")
        seen[message["draw"]] = next(field["value"] for field in message["fields"] if field["path"] == "drawn")
    state = random.getstate()
    for draw in (0, 1):
        monkeypatch.setattr(sys, "stdin", io.StringIO("n\np drawn\nc\n"))
        explorer.debug(3, draw)
        said = capsys.readouterr().out
        assert "drawn = generator().random()" in said
        assert repr(seen[draw]) in said
    monkeypatch.setattr(sys, "stdin", io.StringIO("p drawn\nq\n"))
    explorer.debug(2, post_mortem=True)
    assert 'raise ValueError("no")' in capsys.readouterr().out
    assert random.getstate() == state
    explorer.close()
    for x in ([1, 2], iter("ab"), {"a": np.ones(3), "b": np.ones(3)}):
        explorer = open_explorer(x)
        with pytest.raises(TypeError, match="the debugger cannot stop in"):
            explorer.debug(0)
        explorer.close()


def test_samples_that_failed_are_read_again_on_request(view, sent, monkeypatch):
    say(view, kind="want", indices=[2], screen=[2])
    cards(sent, 2)
    monkeypatch.setattr(Numbers, "__getitem__", lambda _self, index: index)
    view.retry()
    assert following(sent, "again")["indices"] == [2]
    assert "error" not in cards(sent, 2)[2]
    assert view.failed == []


def test_what_is_good_of_a_table_is_its_rows():
    explorer = open_explorer({"x": np.arange(4), "label": list("abcd")})
    explorer.selected = [1]
    assert [row["label"] for row in explorer.good()] == ["a", "c", "d"]
    explorer.close()


def test_the_end_of_a_stream_becomes_its_length(sent):
    explorer = open_explorer(iter("abc"))
    say(explorer, kind="ready")
    state = following(sent, "state")
    assert (state["total"], state["streaming"]) == (20, True)
    say(explorer, kind="want", indices=[7, 0], screen=[0, 7])
    state = following(sent, "state")
    while state["total"] != 3:
        state = following(sent, "state")
    assert not state["streaming"]
    assert len(explorer) == 3
    with pytest.raises(TypeError, match="no indices"):
        explorer.good()
    explorer.close()


def test_the_static_form_has_what_was_on_screen_and_no_markup_of_samples(view, sent):
    view.show()
    say(view, kind="want", indices=[1, 2, 5], screen=[1, 2])
    cards(sent, 1, 2, 5)
    view.close()
    page = ""
    while "data:image/png" not in page:
        page = sent.pages.get(timeout=TIMEOUT)
    assert "&lt;b&gt;no&lt;/b&gt;" in page
    assert "<script>" not in page
    assert "<b>no" not in page
    assert ">5<" not in page.replace("255", "")
    assert view.widget.comm is None


def test_the_static_form_is_written_once_no_more_samples_come_by_one_timer_for_all_of_them(view, sent, monkeypatch):
    monkeypatch.setattr(cell_output, "STATIC_PAUSE", 1000.0)
    view.show()
    say(view, kind="want", indices=[1, 5], screen=[1, 5])
    cards(sent, 1, 5)
    timer = view._output._timer
    view._output.plan()
    assert view._output._timer is timer
    timer.cancel()
    view._output._on_timer()  # samples have come since: it waits again
    again = view._output._timer
    assert again is not timer
    assert "data:image/png" not in "".join(sent.pages.queue)
    again.cancel()

    def is_written():  # the thread that has sent the samples may plan it once more after that
        view._output._due_at = 0.0
        view._output._timer.cancel()
        view._output._on_timer()
        return "data:image/png" in "".join(sent.pages.queue)

    wait_for(is_written)


def test_the_static_form_is_small_however_much_is_on_screen():
    reader = SampleReader(
        [np.random.default_rng(i).integers(0, 255, (200, 200, 3)).astype(np.uint8) for i in range(9)], {}, ()
    )
    samples: list[ReadSample] = [reader[Request(i)] for i in range(9)]
    page = static.html("name", assets.styles(), "t" * 100, 10**6, [(i, samples[i % 9]) for i in range(400)])
    assert len(page) < 300_000
    assert page.count("<img") >= 1


def test_an_explorer_that_nobody_holds_ends(sent):
    explorer = open_explorer(Numbers())
    say(explorer, kind="ready")
    say(explorer, kind="want", indices=[0], screen=[0])
    cards(sent, 0)
    ref = weakref.ref(explorer)
    if explorer._output._timer is not None:
        explorer._output._timer.cancel()
    del explorer
    wait_for(lambda: gc.collect() is not None and ref() is None)  # its thread may still be sending the sample


class Planted:
    """Random augmentation, and one of each problem."""

    classes = ("cat", "dog")

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 5:
            raise OSError(2, "truncated", "/data/5.jpg")
        picture = np.random.default_rng(index // 2 if index == 9 else index).integers(0, 200, (12, 16, 3))
        picture = picture + generator().randrange(50)  # samples 4 and 9 are equal but for this
        image = (picture if index != 7 else np.zeros_like(picture)).astype(np.uint8)
        return {
            "image": image[..., 0] if index == 11 else image,
            "wave": np.where(index == 13, np.nan, np.arange(20.0) + index),
            "label": int(index >= 20) if index != 9 else 1,
        }


def test_a_scan_finds_planted_problems_and_lists_them_with_their_reasons(sent):
    explorer = open_explorer(Planted())
    say(explorer, kind="ready")
    assert explorer.problems() == {
        "failed": {},
        "duplicate": {},
        "alike": {},
        "not finite": {},
        "missing": {},
        "constant": {},
        "shape": {},
    }
    explorer.scan(40)
    problems = explorer.problems()
    assert list(problems["failed"]) == explorer.failed == [5]
    assert problems["duplicate"] == {9: "the same as 4, but label is dog and not cat"}
    assert problems["not finite"] == {13: "wave has numbers that are not finite"}
    assert problems["constant"] == {7: "image has a single value"}
    assert list(problems["shape"]) == [11]
    assert "usually uint8 picture with 3 channels 12\N{MULTIPLICATION SIGN}16" in problems["shape"][11]
    say(explorer, kind="order", name="duplicate")
    order = following(sent, "order")
    assert np.frombuffer(order["data"][0]).tolist() == [4, 9]
    assert order["notes"] == {4: "the first of 2 that are equal", 9: problems["duplicate"][9]}
    explorer.selected = problems["duplicate"]
    assert 9 not in explorer.good().indices
    explorer.close()


def test_try_again_takes_the_class_as_it_is_now_and_reads_only_the_samples_of_the_list(sent, monkeypatch):
    module = types.ModuleType("edited_cell")
    module.Cell = type("Cell", (Planted,), {"__module__": "edited_cell"})
    monkeypatch.setitem(sys.modules, "edited_cell", module)
    dataset = Subset(module.Cell(), range(40))
    explorer = open_explorer(dataset)
    say(explorer, kind="ready")
    explorer.scan(40)
    say(explorer, kind="open", index=5, draw=0, choices={})
    assert "truncated" in following(sent, "sample")["error"]
    read = []
    fixed = {"__module__": "edited_cell", "__getitem__": lambda _self, index: (read.append(index), {"n": index})[1]}
    module.Cell = type("Cell", (Planted,), fixed)
    say(explorer, kind="retry", problem="failed")
    assert following(sent, "again")["indices"] == [5]
    assert "error" not in cards(sent, 5)[5]
    say(explorer, kind="open", index=5, draw=0, choices={})
    assert "error" not in following(sent, "sample"), "what was read before of the sample is forgotten, too"
    assert set(read) == {5}
    explorer.close()


def test_columns_orders_and_selections_of_the_user_reach_views_and_python(view, sent):
    view.add_column("loss", [i % 7 for i in range(30)])
    assert following(sent, "again")["indices"] == []
    assert view.sort("loss", descending=True)[:5] == [6, 13, 20, 27, 5]
    order = following(sent, "order")
    assert (order["name"], order["length"], order["groups"]) == ("filtered", 30, [])
    assert view.group("loss", each=2)["0"] == 5
    order = following(sent, "order")
    assert order["groups"][0] == {"name": "0", "size": 5, "listed": 2, "filters": {"loss": [0, 0]}}
    chosen = order["chosen"]
    assert (chosen["sort"], chosen["descending"], chosen["group"]) == ("loss", True, "loss"), "views show it"
    assert view.code() == "view.sort('loss', descending=True)\nview.group('loss')"
    assert view.filter(lambda row: row["loss"] == 3) == [3, 10, 17, 24]
    following(sent, "order")
    assert view.code() == "# view.filter() or view.similar() was called: repeat that call here"
    say(view, kind="filter", filters={"loss": [5, 6]}, words="", sort="loss", descending=False, group="")
    assert following(sent, "order")["length"] == 8
    view.selected = [3]
    assert view.code().splitlines()[1:] == ["view.sort('loss')", "view.selected = [3]"]
    say(view, kind="order", name="all")
    assert view.code() == "view.selected = [3]", "nothing is sorted or filtered any more"
    say(view, kind="columns")
    columns = following(sent, "columns")
    assert (columns["sortable"], columns["groupable"]) == (["loss"], ["loss"])
    with pytest.raises(KeyError, match="no column 'gain'"):
        view.sort("gain")
    say(view, kind="filter", filters={}, sort="gain")
    assert "no column 'gain'" in following(sent, "state")["notes"][-1]


def test_a_map_is_plotted_a_lasso_selects_and_similar_samples_are_listed(view, sent):
    angles = np.arange(30) * 2 * np.pi / 30
    view.embed(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert following(sent, "state")["embedded"] is True
    plot = following(sent, "plot")
    assert (plot["x"], plot["y"]) == ("map x", "map y")
    say(view, kind="lasso", x="map x", y="map y", corners=[[0.9, -0.5], [1.1, -0.5], [1.1, 0.5], [0.9, 0.5]])
    assert following(sent, "selected")["indices"] == view.selected == [0, 1, 2, 28, 29]
    assert following(sent, "order")["name"] == "selected"
    say(view, kind="similar", index=0)
    order = following(sent, "order")
    assert order["length"] == 30
    assert list(view.similar(0, 2)) == [1, 29]
    view.selected = [0, 1, 3]
    view.embed(lambda sample: [sample["n"], 1.0, 2.0], name="by function")
    assert following(sent, "plot")["x"] == "by function x"
    assert view.to_pandas().empty or "by function x" in view.to_pandas()


class Crops(torch.utils.data.Dataset):
    """A dataset that ignores its index."""

    def __init__(self, *, random):
        self.data = torch.arange(100_000)
        self.random = random

    def __len__(self):
        return 30

    def __getitem__(self, _index):
        at = int(generator().randrange(len(self.data) - 64)) if self.random else 7
        return self.data[at : at + 64]


def test_samples_that_depend_on_the_seed_only_are_no_duplicates_but_equal_ones_are(sent):
    explorer = open_explorer(Crops(random=True))
    explorer.scan(30)
    assert explorer.problems()["duplicate"] == {}
    say(explorer, kind="ready")
    [note] = following(sent, "state")["notes"]
    assert note.startswith("What a sample is depends on the random generators and not on its index: 30 of 30 are equal")
    assert explorer._table.listed("duplicate") == {}
    explorer.retry(range(30))  # the dataset may be another one now
    explorer.close()
    explorer = open_explorer(Crops(random=False))
    explorer.scan(30)
    assert len(explorer.problems()["duplicate"]) == 29
    say(explorer, kind="ready")
    assert following(sent, "state")["notes"] == []
    explorer.close()


def test_a_scan_from_the_browser_is_paused_resumed_and_ended(sent):
    gate = threading.Semaphore(3)

    class Gated(Numbers):
        def __getitem__(self, index):
            gate.acquire()
            return index

    explorer = open_explorer(Gated())
    say(explorer, kind="ready")
    say(explorer, kind="scan", action="start", count=30)
    following(sent, "scan")
    say(explorer, kind="scan", action="pause")
    paused = following(sent, "scan")["scan"]
    while not paused["paused"]:
        paused = following(sent, "scan")["scan"]
    gate.release()  # for the sample that a worker has
    say(explorer, kind="scan", action="resume")
    for _ in range(26):
        gate.release()
    scan = paused
    while scan is not None:
        scan = following(sent, "scan")["scan"]
    assert len(explorer.rows()) == 30
    explorer.close()


def test_histograms_filter_one_another_and_the_list(sent):
    explorer = open_explorer(Costly())
    say(explorer, kind="ready")
    explorer.scan(100)
    say(explorer, kind="stats", filters={"label": ["night"]}, x="n", y="seconds", by="label")
    stats = following(sent, "stats")
    columns = {column["name"]: column for column in stats["columns"]}
    assert (stats["rows"], stats["passed"]) == (100, 25)
    assert (columns["label"]["labels"], columns["label"]["passed"]) == (["day", "night"], [75, 25])
    assert (sum(columns["n"]["all"]), sum(columns["n"]["passed"])) == (100, 25)
    [night] = stats["costs"]
    assert (night["value"], night["samples"]) == ("night", 25)
    x, _y, indices = (np.frombuffer(part) for part in stats["data"][:3])
    passed = np.frombuffer(stats["data"][3], np.bool_)
    assert x.tolist() == indices.tolist() == list(range(100))
    assert np.flatnonzero(passed).tolist() == list(range(0, 100, 4))
    say(explorer, kind="filter", filters={"label": ["night"], "n": [0, 20]})
    order = following(sent, "order")
    assert (order["name"], np.frombuffer(order["data"][0]).tolist()) == ("filtered", [0, 4, 8, 12, 16, 20])
    explorer.close()


def test_the_first_samples_are_read_while_the_page_loads_the_view(sent):
    explorer = open_explorer(Numbers())
    read: queue.Queue[int] = queue.Queue()
    explorer._fetcher._on_read = lambda samples: [read.put(request.index) for request, _ in samples]
    explorer.show()
    assert sorted(read.get(timeout=TIMEOUT) for _ in range(cell_output.FIRST)) == list(range(cell_output.FIRST))
    say(explorer, kind="ready")
    say(explorer, kind="want", indices=[0, 1], screen=[0, 1])
    cards(sent, 0, 1)  # from the cache
    assert read.empty()
    explorer.close()
