"""What changes would gain: shown beside the verdict, with suggestions, wherever a verdict is shown."""

from __future__ import annotations

import dataclasses
import io

import pytest
from torch.utils.data import IterableDataset

from nbloader import DataLoader
from nbloader.diagnose.outlook import Present, changes, outlook, restart
from nbloader.diagnose.what_if import Prediction
from nbloader.loader import monitor
from nbloader.metrics.evidence import Diagnosis
from nbloader.metrics.snapshot import Outlook, Suggestion, Verdict
from nbloader.report import render


def predicts(gains):
    """A model with these speedups, by the arguments' values; None for no prediction."""
    asked = []

    def predict(changed):
        ((name, value),) = changed.items()
        asked.append((name, value))
        gain = gains.get(value if name == "num_workers" else name)
        if gain is None:
            return Prediction(change="", measured=10.0, reason="unknown")
        return Prediction(change="", measured=10.0, speedup=gain, low=0.9 * gain, high=1.1 * gain)

    return predict, asked


@pytest.mark.unit
@pytest.mark.parametrize(
    ("present", "gains", "text", "labels"),
    [
        (
            Present(2, 2, 16),
            {4: 1.9, 8: 2.9, "prefetch_factor": 1.0},
            "8 workers: 2.9x (2.6 to 3.2); a larger window: no gain",
            ["Use 8 workers"],
        ),
        (Present(2, 2, 16), {4: 1.9, 8: 2.0}, "4 workers: 1.9x (1.7 to 2.1)", ["Use 4 workers"]),
        (
            Present(2, 2, 16),
            {4: 1.02, 8: 1.02, "prefetch_factor": 1.2},
            "a larger window: 1.20x (1.08 to 1.32); 4 workers: no gain",
            ["Use prefetch_factor=4"],
        ),
        (Present(2, 2, 16), {4: 0.8}, "4 workers: slower", []),
        (Present(0, 1, 8), {2: 3.0}, "2 workers: 3.0x (2.7 to 3.3)", ["Use 2 workers"]),
        (Present(3, 2, 3), {6: 2.0, "prefetch_factor": 1.0}, "a larger window: no gain", []),
        (Present(6, 20, 8), {}, "", []),
    ],
)
def test_changes_are_predicted_and_suggested(present, gains, text, labels):
    predict, asked = predicts(gains)
    found = outlook(changes("workers_wait", present, predict))
    assert found.text == text
    assert [suggestion.label for suggestion in found.suggestions] == labels
    assert all(value <= present.max_workers for name, value in asked if name == "num_workers")
    assert len(asked) <= 3


@pytest.mark.unit
@pytest.mark.parametrize("cause", ["consumer", "lock", "starting", "paused", "", "startup", "sampler"])
def test_nothing_is_predicted_where_settings_do_not_matter(cause):
    predict, asked = predicts({4: 2.0})
    assert changes(cause, Present(2, 2, 8), predict) == ()
    assert not asked


@pytest.mark.unit
@pytest.mark.parametrize(
    ("shown", "text", "labels"),
    [
        (Verdict("workers_wait", more_workers=True, larger_window=False), "8 workers: 2.9x (2.6 to 3.2)", 1),
        (Verdict("window", more_workers=False, larger_window=True), "a larger window: 1.20x (1.08 to 1.32)", 1),
        (Verdict("workers_compute_full", more_workers=False), "a larger window: 1.20x (1.08 to 1.32)", 1),
        (Verdict("slow_samples", larger_window=False), "8 workers: 2.9x (2.6 to 3.2)", 1),
        (Verdict("collate"), "8 workers: 2.9x (2.6 to 3.2); a larger window: 1.20x (1.08 to 1.32)", 2),
        (Verdict("sampler", more_workers=False, larger_window=False), "", 0),
    ],
)
def test_predictions_that_the_sentence_contradicts_are_left_out(shown, text, labels):
    predict, _asked = predicts({4: 1.9, 8: 2.9, "prefetch_factor": 1.2})
    found = outlook(changes("workers_wait", Present(2, 2, 16), predict), shown)
    assert (found.text, len(found.suggestions)) == (text, labels)


@pytest.mark.unit
def test_a_prediction_of_no_gain_agrees_with_a_sentence_that_says_so():
    predict, _asked = predicts({4: 1.9, 8: 2.9, "prefetch_factor": 1.0})
    found = changes("workers_wait", Present(2, 2, 16), predict)
    assert outlook(found, Verdict(larger_window=False)).text == "8 workers: 2.9x (2.6 to 3.2); a larger window: no gain"
    assert outlook(found, Verdict(more_workers=False)).text == "a larger window: no gain"


@pytest.mark.unit
def test_a_restart_names_the_workers():
    assert restart((3,))[:2] == ("Restart worker 3", "loader.restart_workers([3])")
    assert restart((1, 4)).label == "Restart workers 1, 4"


@pytest.fixture
def judged(monkeypatch):
    """Loaders whose verdict and predictions do not depend on how busy the machine is."""

    def judge(s, _status, _now, _epoch):
        verdict = Verdict("workers_wait" if s.epoch >= 0 else "new", "Workers wait for a disk.")
        return Diagnosis(verdict, verdict, verdict)

    def predict(records, _epoch, now, after, *_more, whole):
        predicted.append(after)
        if len(records) < 50:
            return Prediction(change="", measured=10.0, reason="too few batches")
        gain = max(after.workers, 1) / max(now.workers, 1)
        return Prediction(change="", measured=10.0, speedup=gain, low=gain, high=gain)

    predicted = []
    monkeypatch.setattr(monitor, "judge", judge)
    monkeypatch.setattr(monitor, "predict", predict)
    return predicted


def test_predictions_stand_beside_the_verdict_in_every_form(judged):
    said = io.StringIO()
    with DataLoader(list(range(480)), 4, num_workers=2, workers="thread", prefetch_factor=2) as loader:
        for _batch in loader.progress(file=said):
            pass
        found = loader.stats()
        assert found.outlook.text == "8 workers: 4.0x (4.0 to 4.0); a larger window: no gain"
        for text in (str(found), said.getvalue(), found._repr_html_(), loader.report().html()):
            words = " ".join(text.split())
            assert f"Predicted: {found.outlook.text}. To try it: loader.num_workers = 8." in words, words
        made = len(judged)
        assert loader.stats().outlook == found.outlook
        assert len(judged) == made, "it is not made again"
        taken = dataclasses.replace(found, cause="cores_taken")
        assert loader._parts.monitor._outlook(taken, loader._model_arguments()) == Outlook(), "the sentence contradicts"
        hung = dataclasses.replace(found, stalled=9.0, restart=(1,), state="running")
        suggested = loader._parts.monitor._outlook(hung, loader._model_arguments())
        assert suggested == Outlook("", (restart((1,)),)), "settings do not end a hang"
        loader.num_workers = 3
        loader.stats()
        assert len(judged) > made, "the settings are others"


@pytest.mark.usefixtures("judged")
def test_predictions_agree_with_the_verdict_about_an_earlier_epoch(monkeypatch):
    full = Verdict("workers_compute_full", "More workers would not help.", more_workers=False)

    def judge(s, *_more, **_options):
        return Diagnosis(full, full, full if s.epoch < 1 else Verdict("unknown"))

    monkeypatch.setattr(monitor, "judge", judge)
    loader = DataLoader(
        list(range(480)), 4, num_workers=2, workers="thread", prefetch_factor=2, persistent_workers=True
    )  # new workers would make earlier batches useless for predictions
    with loader:
        for _batch in loader:
            pass
        assert loader.stats().outlook.text == "a larger window: no gain"
        for count, _batch in enumerate(loader):
            if count == 60:
                break
        assert loader.stats().outlook.text == "a larger window: no gain"


@pytest.mark.usefixtures("judged")
def test_workers_whose_number_matters_are_not_suggested():
    class Numbers(IterableDataset):
        def __iter__(self):
            yield from range(300)

    with DataLoader(Numbers(), 4, num_workers=1, workers="thread", prefetch_factor=2) as loader:
        for _batch in loader:
            pass
        assert loader.stats().outlook == Outlook("a larger window: no gain")


@pytest.mark.unit
def test_the_statement_of_a_sentence_is_not_repeated():
    with DataLoader([1, 2]) as loader:
        blank = loader.stats()
    hung = dataclasses.replace(
        blank, verdict="Restart it: loader.restart_workers([3]).", outlook=Outlook("", (restart((3,)),))
    )
    assert render.outlook(hung) == ""
    both = hung.outlook._replace(suggestions=(restart((3,)), Suggestion("Use 4 workers", "loader.num_workers = 4")))
    assert render.outlook(dataclasses.replace(hung, outlook=both)) == "To try it: loader.num_workers = 4."
