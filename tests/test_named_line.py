"""The line of code that takes the workers' time is named wherever the verdict is: text, report, progress, Lightning."""

from __future__ import annotations

import html
import io
import pathlib
import re
import threading
import time

import light
import numpy as np
import pytest
from datasets import wait_for

from nbloader import DataLoader
from nbloader.dashboard.panels.base import Frame
from nbloader.dashboard.panels.summary import Summary
from nbloader.remedies.advice import short_advice

SOURCE = "time.sleep(0.1)  # hot: waiting"
PLACE = "light.py:" + str(
    1 + next(i for i, line in enumerate(pathlib.Path(light.__file__).read_text().splitlines()) if SOURCE in line)
)
NAMED = re.compile(
    rf"\d+% of the workers' time is spent in `{re.escape(' '.join(SOURCE.split()))}` \(\S*{re.escape(PLACE)}\)"
)


def one_line(text: str) -> str:
    return " ".join(html.unescape(text).split())


@pytest.fixture
def loader():
    with DataLoader(light.Hot(50, "waiting"), 1, num_workers=2, workers="thread") as made:
        yield made


def test_print_progress_and_the_report_name_the_line(loader, tmp_path):
    out = io.StringIO()
    for _batch in loader.progress(file=out):
        pass
    assert NAMED.search(one_line(out.getvalue())), out.getvalue()
    assert NAMED.search(one_line(str(loader.stats())))
    assert NAMED.search(one_line(loader.stats()._repr_html_()))
    assert NAMED.search(one_line(loader.stats().epoch_verdict.sentence))
    page = tmp_path / "report.html"
    loader.report().save(page)
    assert NAMED.search(one_line(page.read_text("utf-8")))


class Archives:
    """Reads a compressed archive for each sample."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 600  # an epoch of seconds: within 1.0 s no line was named

    def __getitem__(self, index):
        return np.load(f"{self.folder}/{index % 8}.npz")["x"][:8]  # hot: archive


def test_the_remedy_of_a_line_is_the_first_thing_that_is_said_and_is_said_everywhere(tmp_path, monkeypatch):
    values = np.random.default_rng(0).integers(0, 99, 300_000)
    for number in range(8):
        np.savez_compressed(tmp_path / f"{number}.npz", x=values)
    looked = []
    monkeypatch.setattr(
        "nbloader.remedies.advice.short_advice",
        lambda line, roots: looked.append(line.line) or short_advice(line, roots),
    )
    out = io.StringIO()
    with DataLoader(Archives(str(tmp_path)), 4, num_workers=2) as loader:
        for _batch in loader.progress(file=out):
            loader.stats()
        s = loader.stats()
        page = tmp_path / "report.html"
        loader.report().save(page)
        listed = loader.remedies(samples=0)
    assert s.epoch_verdict.cause in ("workers_compute", "workers_compute_full", "cores_taken"), s.verdict
    number = Archives.__getitem__.__code__.co_firstlineno + 1
    told = re.compile(
        rf"Store arrays with numpy\.save, not as \.npz \(\S*test_named_line\.py:{number}\), "
        r"as loader\.remedies\(\) shows\."
    )
    assert told.match(s.epoch_verdict.sentence), s.epoch_verdict.sentence
    frame = Summary().payload(Frame(s))["verdict"]
    for text in (out.getvalue(), str(s), s._repr_html_(), page.read_text("utf-8"), s.verdict, frame):
        assert len(told.findall(one_line(text))) == 1, text
    assert "npz-archive" in [one.name for one in listed], "that call says the same"
    assert looked == [number], "once per line"


@pytest.mark.filterwarnings("ignore:.*(num_workers|persistent_workers|logging interval|checkpoint|tensorboard|GPU).*")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_callback_for_lightning_names_the_line(loader, tmp_path, capsys):
    lightning = pytest.importorskip("lightning")
    import torch

    page = pathlib.Path(__file__).parents[1] / "docs/how-to/use-in-frameworks.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(next(block for block in blocks if "lightning.Callback" in block), names)

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _number):
            return self.layer(batch.reshape(-1, 1).float()).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[names["Diagnosis"]()],
    )  # fmt: skip
    trainer.fit(Line(), loader)
    assert NAMED.search(one_line(capsys.readouterr().out))


class Balanced:
    """Draws indices slowly."""

    def __iter__(self):
        for index in range(40):
            time.sleep(0.02)
            yield index

    def __len__(self):
        return 40


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_sampler_is_named_with_its_place(workers):
    from torch.utils.data import BatchSampler

    line = Balanced.__iter__.__code__.co_firstlineno
    told = re.compile(rf"indices \(\S+ ms per batch\) in Balanced\.__iter__ \(\S*test_named_line\.py:{line}\)\.")
    for arguments in ({"sampler": Balanced(), "batch_size": 4}, {"batch_sampler": BatchSampler(Balanced(), 4, False)}):
        with DataLoader(light.Numbers(40), num_workers=workers, output="numpy", **arguments) as loader:
            for _batch in loader:
                pass
            s = loader.stats()
        assert s.epoch_verdict.cause == "sampler", s.verdict
        assert told.search(s.epoch_verdict.sentence), s.verdict


@pytest.mark.parametrize("workers", [0, 2])
def test_the_slowest_line_of_a_slow_sampler_is_named(workers):
    line = Balanced.__iter__.__code__.co_firstlineno + 2
    told = re.compile(rf" \d+% of its time is spent in `time\.sleep\(0\.02\)` \(\S*test_named_line\.py:{line}\)\.")
    with DataLoader(light.Numbers(40), 1, sampler=Balanced(), num_workers=workers, workers="thread") as loader:
        wait_for(lambda: list(loader) and told.search(loader.stats().epoch_verdict.evidence))
        assert told.search(str(loader.hot_lines()))


@pytest.mark.parametrize("workers", [0, 2])
def test_where_no_line_of_the_dataset_is_slow_lines_and_remedies_name_the_sampler(workers):
    with DataLoader(light.Numbers(40), 4, sampler=Balanced(), num_workers=workers, workers="thread") as loader:
        for _batch in loader:
            pass
        told = loader.stats().epoch_verdict.evidence
        assert "Balanced.__iter__" in told
        assert loader.hot_lines().elsewhere == told
        assert told in str(loader.hot_lines())
        assert told in str(loader.remedies(samples=0))


def test_where_no_line_of_the_dataset_is_slow_lines_and_remedies_name_the_loop():
    with DataLoader(light.Numbers(10), 1, num_workers=0) as loader:

        def loop_is_slow():
            for _batch in loader:
                time.sleep(0.02)
            return loader.stats().epoch_verdict.cause.startswith("consumer")

        wait_for(loop_is_slow)  # on a busy machine a quick sample, or the sampler, may have waited for a core
        for text in (str(loader.hot_lines()), str(loader.remedies(samples=0))):
            assert "Your loop is the bottleneck: it waited for" in text


def test_lines_of_workers_that_limit_the_loop_are_all_that_is_said(loader):
    for _batch in loader:
        pass
    assert loader.hot_lines().elsewhere == ""
    assert "bottleneck" not in str(loader.hot_lines())


def count(values):
    return sum(int(value.item() > 0) for value in values)  # hot: loop


@pytest.mark.parametrize("workers", [0, 2])
def test_the_slowest_line_of_a_loop_is_named_on_request(workers):
    import torch

    number = count.__code__.co_firstlineno + 1
    values = torch.arange(3000.0)
    with DataLoader(light.Numbers(40), 1, num_workers=workers, workers="thread") as loader:
        loader.profile_lines()
        begin = time.thread_time()
        for _epoch in range(2):
            for _batch in loader:
                while time.thread_time() - begin < 0.05:
                    count(values)
                begin = time.thread_time()
        s = loader.stats()
        assert s.epoch_verdict.cause == "consumer_python", s.verdict
        place = rf"\(\S*test_named_line\.py:{number}\)"
        cores = r"(, or free the cores that other programs use)?"  # on a busy machine
        told = rf"[Kk]eep values as tensors, and convert them once after the loop {place}{cores}\. Your loop is the"
        assert re.search(told, s.epoch_verdict.sentence), s.verdict
        told = rf"\d+% of that time is spent in `return sum\(int\(value\.item\(\) > 0\) .*` {place}\."
        assert re.search(told, s.epoch_verdict.sentence), s.verdict
        assert re.search(told, str(loader.hot_lines()))
        loader.profile_lines(on=None)
        for _batch in loader:
            time.sleep(0.01)
        assert "value.item()" not in loader.stats().verdict


def test_the_line_of_a_loop_in_another_thread_is_not_one_of_the_cell():
    with DataLoader(light.Numbers(100), 1, num_workers=0) as loader:
        loader.profile_lines()
        loop = threading.Thread(target=lambda: [count([np.float64(1)] * 100_000) for _batch in loader])
        loop.start()
        while loop.is_alive():
            sum(range(100_000))  # what the cell does meanwhile
        sentence = loader.stats().epoch_verdict.sentence
    assert "sum(int(value.item() > 0)" in sentence
    assert "what the cell does" not in sentence
