"""The accelerator: whether uploads are hidden behind the work of the loop, and how much memory they take."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from nbloader._util.format import clean, duration, megabytes, number, percent
from nbloader.dashboard.panels.base import Frame, Panel, section

if TYPE_CHECKING:
    from nbloader.events.gauges import DeviceGauge
    from nbloader.metrics.snapshot import Snapshot, UploadStats

DEVICES = 16
"""Maximum number of devices that are drawn."""
_NAME = 40


class Device(Panel):
    """One line for uploads and one for each memory, with bars. The panel is hidden where nothing is uploaded."""

    name = "device"
    title = "Device"

    def payload(self, frame: Frame) -> dict[str, Any]:
        """Return the lines, each with parts of a bar in percent; no lines if batches stay where they are."""
        s = frame.snapshot
        if not (s.device or s.pinned):
            return {"lines": []}
        lines = [*_upload(s), *_pinning(s), *(_memory(gauge) for gauge in s.devices[:DEVICES])]
        return {"note": _note(s), "warn": s.cause == "upload", "lines": lines}

    def html(self, payload: dict[str, Any]) -> str:
        """Return the same lines."""
        lines = "".join(
            f'<div class="nbl-device-line"><span>{escape(line["label"])}</span>{_bar(line["bar"])}'
            f"<span>{escape(line['text'])}</span></div>"
            for line in payload["lines"]
        )
        return section(self.title, lines)


def _note(s: Snapshot) -> str:
    u = s.uploads
    if u is None or u.hidden is None:
        return ""
    return f"{percent(u.hidden)} of the uploads hidden"


def _line(label: str, text: str, *bar: tuple[str, float]) -> dict[str, Any]:
    return {"label": label, "text": text, "bar": [[part, round(100 * min(1.0, share), 1)] for part, share in bar]}


def _upload(s: Snapshot) -> list[dict[str, Any]]:
    u = s.uploads
    if not s.device:
        return []
    if u is None or u.copy is None:
        return [_line(f"Upload to {clean(s.device, _NAME)}", "not measured yet")]
    text = f"{duration(u.copy / 1e3)} a batch"
    if u.gb_per_second is not None:
        text += f", {number(u.gb_per_second)} GB/s"
    if u.hidden is None:
        return [_line(f"Upload to {clean(s.device, _NAME)}", text)]
    exposed = u.copy * (1 - u.hidden)
    text += f"; {percent(u.hidden)} hidden behind the step"
    if exposed >= 0.01:  # noqa: PLR2004 - 10 us
        text += f", the device waits {duration(exposed / 1e3)} for each"
    return [_line(f"Upload to {clean(s.device, _NAME)}", text, ("hidden", u.hidden), ("exposed", 1 - u.hidden))]


def _pinning(s: Snapshot) -> list[dict[str, Any]]:
    u = s.uploads
    if u is None or not s.pinned:
        return []
    pinned = max((gauge.pinned for gauge in s.devices), default=0)
    return [_line("Pinned memory", _ways(u) + (f"; {megabytes(pinned)} are pinned in place" if pinned else ""))]


def _ways(u: UploadStats) -> str:
    names = {
        "registered": "shared memory, without a copy",
        "copied": f"batches are copied to it, {duration(u.pin / 1e3)} each",
        "pageable": "not used",
    }
    return "; ".join(names[way.memory] for way in u.ways)


def _memory(gauge: DeviceGauge) -> dict[str, Any]:
    used, reserved, all_of_it = map(megabytes, (gauge.used, gauge.reserved, gauge.total))
    text = f"{used} in tensors, {reserved} reserved by torch, of {all_of_it}"
    total = max(1, gauge.total)
    kept = max(0, gauge.reserved - gauge.used)
    return _line(f"Memory of {clean(gauge.name, _NAME)}", text, ("used", gauge.used / total), ("kept", kept / total))


def _bar(parts: list[list[Any]]) -> str:
    inside = "".join(f'<i class="nbl-{escape(part)}" style="width:{share}%"></i>' for part, share in parts)
    return f'<span class="nbl-device-bar">{inside}</span>'
