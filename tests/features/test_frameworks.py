"""The loader in training frameworks. Each test is skipped if its package is not installed."""

from __future__ import annotations

import time

import pytest
import torch
from datasets import Numbers
from test_docs import ROOT, block_with, output
from torch.utils import data as theirs

from nbloader import DataLoader
from nbloader.events import BatchRecord

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # theirs
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

GUIDE = ROOT / "docs/how-to/use-in-frameworks.md"


class Pairs(Numbers):
    """Points of the line y = 2 x."""

    def __getitem__(self, i):
        x = torch.tensor([float(i) / 10])
        return x, 2 * x


def delivered(loader):
    return [event for event in loader.events.recent() if isinstance(event, BatchRecord)]


@pytest.mark.filterwarnings("ignore:.*(num_workers|persistent_workers|logging interval|checkpoint|tensorboard|GPU).*")
def test_lightnings_trainer_fits_and_validates(tmp_path, with_workers):
    lightning = pytest.importorskip("lightning")

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []

        def training_step(self, batch, _number):
            x, y = batch
            self.seen += x.flatten().tolist()
            return torch.nn.functional.mse_loss(self.layer(x), y)

        def validation_step(self, batch, _number):
            self.log("loss", self.training_step(batch, 0))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Line()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, num_sanity_val_steps=0,
    )  # fmt: skip
    with (
        DataLoader(Pairs(20), 4, shuffle=True, **with_workers) as train,
        DataLoader(Pairs(6), 3, **with_workers) as validate,
    ):
        trainer.fit(model, train, validate)
        assert trainer.train_dataloader is train
    assert len(model.seen) == 2 * (20 + 6)
    assert sorted(round(x * 10) for x in model.seen[:20]) == list(range(20))


def test_lightning_recreates_the_loader_with_its_own_sampler():
    """As in distributed training, from the attributes of the loader."""
    pytest.importorskip("lightning")
    from lightning.pytorch.utilities.data import _update_dataloader

    sampler = theirs.DistributedSampler(Pairs(8), 2, 1, shuffle=False)
    loader = DataLoader(Pairs(8), 2, num_workers=2, collate_fn=list, prefetch_factor=3)
    with loader, _update_dataloader(loader, sampler) as other:
        assert type(other) is DataLoader
        assert (other.num_workers, other.prefetch_factor, other.collate_fn) == (2, 3, list)
        assert [[round(float(x) * 10) for x, _y in batch] for batch in other] == [[1, 3], [5, 7]]


def test_from_torch_replaces_the_loader_inside_accelerates_wrapper(with_workers):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(Pairs(10), 3, shuffle=True, **with_workers)
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    loader.close()
    ours = DataLoader.from_torch(prepared, **with_workers)
    assert ours is prepared, "placement, gradient accumulation and synchronized shuffling stay Accelerate's"
    assert type(ours.base_dataloader) is DataLoader
    orders = []
    for _ in range(2):
        seen = []
        for x, y in ours:
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen += [round(float(value) * 10) for value in x]
        assert accelerator.gradient_state.end_of_dataloader is False
        assert sorted(seen) == list(range(10))
        orders.append(seen)
    assert orders[0] != orders[1]
    assert len(delivered(ours)) == 8
    ours.base_dataloader.close()


class Slow(Pairs):
    """Each sample waits."""

    def __getitem__(self, i):
        time.sleep(0.01)
        return super().__getitem__(i)


@pytest.mark.filterwarnings("ignore:.*(num_workers|persistent_workers|logging interval|checkpoint|tensorboard|GPU).*")
def test_the_guides_callback_reports_in_lightning_what_limited_each_epoch(tmp_path, capsys):
    lightning = pytest.importorskip("lightning")
    names = {}
    exec(block_with(GUIDE, "lightning.Callback"), names)

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _number):
            x, y = batch
            return torch.nn.functional.mse_loss(self.layer(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[names["Diagnosis"]()],
    )  # fmt: skip
    with DataLoader(Slow(64), 4, num_workers=1, workers="thread") as train:
        trainer.fit(Line(), train)
    assert_says_it_after_each_of_two_epochs(capsys.readouterr().out, "lightning.Callback")
    assert 0 <= trainer.callback_metrics["loader_wait_share"] <= 1


def test_the_guides_lines_report_in_accelerate_what_limited_each_epoch(capsys):
    pytest.importorskip("accelerate")
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(Slow(32), 4, workers="thread")
    names = {
        "torch": torch, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loader": loader,
    }  # fmt: skip
    exec(block_with(GUIDE, "accelerator.prepare"), names)
    names["loader"].base_dataloader.close()
    loader.close()
    assert_says_it_after_each_of_two_epochs(capsys.readouterr().out, "accelerator.prepare")


def assert_says_it_after_each_of_two_epochs(printed, word):
    """What the guide shows below the program with a word."""
    said = [line for line in printed.splitlines() if "of the epoch's" in line]
    assert len(said) == 2
    assert output(GUIDE, word).fullmatch("\n".join(said)), said


def test_the_guides_lines_resume_an_epoch_in_accelerate():
    accelerate = pytest.importorskip("accelerate")
    from accelerate.utils import set_seed

    order = accelerate.DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=order)

    def make():
        set_seed(3)
        return DataLoader.from_torch(accelerator.prepare(DataLoader(Pairs(12), 2, shuffle=True)))

    def epoch(loader):
        return [x.flatten().tolist() for x, _y in loader]

    loader = make()
    first, second = epoch(loader), epoch(loader)
    assert first != second
    names = {"loader": make(), "epoch": 1, "steps_of_epoch": 4}
    exec(block_with(ROOT / "docs/how-to/resume-a-training.md", "skip_first_batches"), names)
    assert type(names["rest_of_epoch"].base_dataloader) is DataLoader
    assert epoch(names["rest_of_epoch"]) == second[4:]


class Rows(Numbers):
    """Samples as Hugging Face's trainer takes them: arguments of the model by name."""

    def __getitem__(self, i):
        time.sleep(0.02)
        x = torch.tensor([float(i) / 10])
        return {"x": x, "labels": 2 * x}


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, x, labels):
        self.seen += x.flatten().tolist()
        predicted = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_the_guides_subclass_gives_hugging_faces_trainer_this_loader(tmp_path, capsys, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.trainer.is_datasets_available", lambda: False)  # `datasets` is a module of tests
    monkeypatch.chdir(tmp_path)
    guide = {"model": Regression(), "dataset": Rows(48)}
    exec(block_with(GUIDE, "transformers.TrainerCallback"), guide)
    assert_says_it_after_each_of_two_epochs(capsys.readouterr().out, "transformers.TrainerCallback")
    trained = []
    for trainer_class in (transformers.Trainer, guide["Trainer"]):
        torch.manual_seed(3)
        model = Regression()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True, seed=5,
            dataloader_num_workers=2, dataloader_prefetch_factor=3, save_strategy="no", report_to=[], disable_tqdm=True,
            dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = trainer_class(model, arguments, train_dataset=Rows(48), eval_dataset=Rows(6))
        trainer.train()
        assert trainer.evaluate()["eval_loss"] >= 0
        trained.append((model.seen, model.layer.weight.item(), trainer.state.global_step))
        inside = trainer.callback_handler.train_dataloader.base_dataloader
        assert isinstance(inside, DataLoader) is (trainer_class is not transformers.Trainer)
    assert trained[0] == trained[1], "the same samples in the same order, and so the same model"
    assert (inside.num_workers, inside.prefetch_factor) == (2, 3)
    assert len(delivered(inside)) == 2 * 12
    assert type(trainer.get_eval_dataloader().base_dataloader) is DataLoader
    assert type(trainer.get_test_dataloader(Rows(6)).base_dataloader) is DataLoader
    inside.close()


def test_from_torch_keeps_the_shards_of_accelerate(with_workers):
    pytest.importorskip("accelerate")
    from accelerate.data_loader import prepare_data_loader

    seen = []
    for rank in range(2):
        loader = theirs.DataLoader(Pairs(8), 2)
        prepared = prepare_data_loader(loader, num_processes=2, process_index=rank, put_on_device=False)
        shell = DataLoader.from_torch(prepared, **with_workers)
        with shell.base_dataloader as inside:
            seen.append([[round(float(v) * 10) for v in x] for x, _y in inside])
    assert seen == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_keras_fits_from_it(monkeypatch, with_workers):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    if keras.config.backend() != "torch":
        pytest.skip("keras was imported with another backend")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    with DataLoader(Pairs(20), 4, shuffle=True, **with_workers) as loader:
        history = model.fit(loader, epochs=3, shuffle=False, validation_data=loader, verbose=0)
        assert model.predict(loader, verbose=0).shape == (20, 1)
        assert len(delivered(loader)) >= 3 * 5 * 2
    losses = history.history["loss"]
    assert losses[-1] < losses[0]
