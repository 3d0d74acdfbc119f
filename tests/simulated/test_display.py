"""What a loader says about its uploads: causes that are planted on the simulated accelerator, and the panel."""

from __future__ import annotations

import re

import pytest
import simulator
import torch
from datasets import Images
from simulator import Read, Registers

from nbloader import DataLoader
from nbloader.dashboard.panels import Frame
from nbloader.dashboard.panels.device import Device
from nbloader.device.pinning import Registry
from nbloader.device.torch_backend import TorchAccelerator
from nbloader.metrics.stage_times import upload_stats

pytestmark = pytest.mark.simulated


def epoch(loader):
    """Iterate a loader that has started its workers, without waiting for the device."""
    reads = [[Read(part) for part in batch] for batch in loader]
    stats = loader.stats()
    for batch in reads:
        for part in batch:
            part.result()
    return stats


def loader_of(count, **options):
    device = TorchAccelerator(torch.device("simulated", 0), Registry(Registers()))
    options = {"num_workers": 2, "persistent_workers": True, "device": device} | options
    loader = DataLoader(Images(count), 4, **options)
    list(loader)
    return loader


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_link_that_is_slower_than_the_rest_is_named_as_the_cause(simulated, ahead):
    with loader_of(160, upload_ahead=ahead) as loader:
        simulator.speed(copy=50, kernel=0.1)  # long, so that a pause of a busy machine is no stall beside it
        stats = epoch(loader)
    assert stats.epoch_verdict.cause == "upload"
    assert "The transfer to simulated:0 is the bottleneck" in stats.epoch_verdict.sentence
    assert stats.uploads.copy > 45


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_device_that_is_slower_than_the_link_is_not(simulated, ahead):
    """The host runs ahead of it, and waits in `next()` for the oldest copy, which waits for the loop's own work."""
    with loader_of(120, upload_ahead=ahead) as loader:
        simulator.speed(copy=0.1, kernel=30)  # long, so that the work of a busy host does not count
        stats = epoch(loader)
        uploads = upload_stats([r for r in loader.events.batches() if r.epoch == 1])
    assert stats.epoch_verdict.cause == "consumer"
    assert stats.epoch_verdict.sentence.startswith("Make the steps of your loop faster")
    if ahead:
        assert uploads.hidden > 0.5


def test_the_panel_shows_uploads_and_memory(simulated):
    simulator.speed(copy=3, kernel=1)
    panel = Device()
    with loader_of(80) as loader:
        batches = iter(loader)
        for _ in range(12):
            batch = next(batches)
        payload = panel.payload(Frame(loader.stats()))
        del batch, batches
    upload, pinned, memory = payload["lines"]
    assert upload["label"] == "Upload to simulated:0"
    assert " ms a batch, " in upload["text"]
    assert sum(share for _part, share in upload["bar"]) == pytest.approx(100, abs=0.2)
    assert re.fullmatch(r"shared memory, without a copy; [\d.,]+ [kM]B are pinned in place", pinned["text"])
    assert memory["label"] == "Memory of simulated:0"
    assert memory["text"].endswith("reserved by torch, of 2.15 GB")
    html = panel.html(payload)
    assert "Memory of simulated:0" in html
    assert payload["note"].endswith("of the uploads hidden")
