"""A device on a simulated clock: streams, events and memory, without a GPU. Unit 9 computes its timelines with it.

A stream is a clock: the time at which the work that is enqueued on it so far will be done. An event is a time. So
nothing here waits. Enqueueing takes no time, and the unit of time is a millisecond. As on most devices, one copy and
one step can run at the same time, whatever the number of streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from IPython.display import SVG


class Operation(NamedTuple):
    """What a lane of the timeline did."""

    kind: str
    """"copy", "step", or "wait" for the host."""
    lane: str
    """The name of a stream, or "host"."""
    batch: int
    begin: float
    end: float
    block: int
    """The memory that a copy writes and a step reads; -1 for none."""


class Device:
    """A device with a stream `main`, and the host that enqueues work on it.

    Args:
        copy: Milliseconds of the copy of a batch, or a list with one number for each batch.
        step: Milliseconds of the step on a batch, or such a list.
    """

    def __init__(
        self, copy: float | Sequence[float] = 4, step: float | Sequence[float] = 10
    ) -> None:
        self.takes = {"copy": copy, "step": step}
        self.free_at = {
            "copy": 0.0,
            "step": 0.0,
        }  # the engine for copies, and that for steps
        self.host = 0.0
        """The time of the host."""
        self.operations: list[Operation] = []
        self.waits: list[
            tuple[str, str, float]
        ] = []  # from which lane to which one, and when
        self.lanes: list[str] = []
        self.blocks = 0
        """Batches for which memory was taken from the device."""
        self.frees = 0
        """Batches whose memory was freed."""
        self.pool: list[Memory] = []  # freed
        self.main = Stream(self, "main")

    def stream(self, name: str) -> Stream:
        """Return a new stream."""
        return Stream(self, name)

    def allocate(self, stream: Stream | None = None) -> Memory:
        """Return memory for a batch, as torch's allocator: what was freed on the same stream comes again, at once."""
        stream = stream or self.main
        for freed in self.pool:
            if freed.stream is stream and all(
                event.time <= self.host for event in freed.events
            ):
                self.pool.remove(freed)
                return Memory(self, stream, freed.block)
        self.blocks += 1
        return Memory(self, stream, self.blocks - 1)

    @property
    def end(self) -> float:
        """When all work is done."""
        return max((operation.end for operation in self.operations), default=0.0)

    def wrong(self) -> list[Operation]:
        """The steps that did not read their batch, or not all of it."""
        return [
            step
            for step in self.operations
            if step.kind == "step" and step.block >= 0 and self._is_wrong(step)
        ]

    def _is_wrong(self, step: Operation) -> bool:
        copies = [
            o
            for o in self.operations
            if o.kind == "copy" and o.block == step.block and o.begin < step.end
        ]
        last = max(copies, key=lambda o: o.begin, default=None)
        return last is None or last.batch != step.batch or last.end > step.begin

    def _run(
        self, kind: str, stream: Stream, batch: int, memory: Memory | None
    ) -> None:
        if memory is not None and memory.freed:
            raise RuntimeError(f"{kind} {batch} uses memory that was freed")
        takes = self.takes[kind]
        begin = max(self.host, stream.clock, self.free_at[kind])
        end = begin + (takes[batch] if isinstance(takes, Sequence) else takes)
        block = -1 if memory is None else memory.block
        self.operations.append(Operation(kind, stream.name, batch, begin, end, block))
        stream.clock = self.free_at[kind] = end

    def _host_waits(self, lane: str, until: float) -> None:
        if until > self.host:
            self.operations.append(Operation("wait", "host", -1, self.host, until, -1))
            self.waits.append((lane, "host", until))
            self.host = until


class Stream:
    """Work that is done in the order in which it was enqueued."""

    def __init__(self, device: Device, name: str) -> None:
        self.device, self.name, self.clock = device, name, 0.0
        device.lanes.append(name)

    def copy(
        self, batch: int, to: Memory, *, pinned: bool = True, non_blocking: bool = True
    ) -> None:
        """Enqueue the copy of a batch to the device. From pageable memory, or if it blocks, the host waits for it."""
        self.device._run("copy", self, batch, to)
        if not (pinned and non_blocking):
            self.synchronize()

    def step(self, batch: int, memory: Memory | None = None) -> None:
        """Enqueue a training step, which reads the batch from the memory."""
        self.device._run("step", self, batch, memory)

    def record_event(self) -> Event:
        """Return an event that happens when the work is done that was enqueued *before* this call."""
        return Event(self, max(self.clock, self.device.host))

    def wait_event(self, event: Event) -> None:
        """Let the work that is enqueued *after* this call begin when the event has happened. The host goes on."""
        if event.time > max(self.clock, self.device.host):
            self.device.waits.append((event.stream.name, self.name, event.time))
        self.clock = max(self.clock, event.time)

    def wait_stream(self, other: Stream) -> None:
        """Wait for an event that is recorded on the other stream now."""
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        """Let the host wait until all work of this stream is done."""
        self.device._host_waits(self.name, self.clock)


class Event(NamedTuple):
    """A point in the work of a stream."""

    stream: Stream
    time: float

    def synchronize(self) -> None:
        """Let the host wait until the event has happened."""
        self.stream.device._host_waits(self.stream.name, self.time)


class Memory:
    """Memory of the device for one batch, allocated on a stream."""

    def __init__(self, device: Device, stream: Stream, block: int) -> None:
        self.device, self.stream, self.block = device, stream, block
        self.used: list[Stream] = []
        self.events: list[Event] = []
        self.freed = False

    def record_stream(self, stream: Stream) -> None:
        """Tell the allocator that work of another stream uses this memory."""
        self.used.append(stream)

    def free(self) -> None:
        """Give the memory back, as torch does when the last variable with the tensor is gone."""
        if not self.freed:
            self.freed, self.events = (
                True,
                [stream.record_event() for stream in self.used],
            )
            self.device.pool.append(self)
            self.device.frees += 1


WIDTH, LEFT, ROW, TOP = 820, 76, 44, 20
FILL = {
    "copy": ("#e3edfb", "#2f6fc0"),
    "step": ("#fdf0d8", "#b7791f"),
    "wait": ("#eef0f3", "#6b7280"),
}
WRONG = ("#fbe3e0", "#c0392b")
INK, MUTED, LINE = "#1f2733", "#4b5563", "#d5d9e0"
LETTER = 7.2
"""Pixels of a letter, at most."""


def draw(device: Device, until: float | None = None) -> SVG:
    """Draw the timeline. Arrows are waits, and steps that read wrong bytes are red.

    Args:
        device: What to draw.
        until: The time at the right end, so that two drawings have the same scale.
    """
    shown = [
        name
        for name in ("host", *device.lanes)
        if any(o.lane == name for o in device.operations)
    ]
    rows = {name: TOP + ROW * n for n, name in enumerate(shown)}
    bottom = TOP + ROW * len(rows)
    scale = (WIDTH - LEFT - 24) / (until or device.end or 1)
    parts = [_rectangle(0.5, 0.5, WIDTH - 1, bottom + 34, "#ffffff", LINE, 10)]
    tick = next(t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500) if t * scale >= 34)
    for n in range(int((until or device.end) / tick) + 1):
        x = LEFT + n * tick * scale
        unit = " ms" if n == 0 else ""
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="{LINE}"/>'
        )
        parts.append(_text(x, bottom + 20, f"{n * tick}{unit}", MUTED, 12))
    parts += [
        _text(LEFT - 10, y + 22, name, INK, 13, "end", 600) for name, y in rows.items()
    ]
    wrong = device.wrong()
    for o in device.operations:
        fill, stroke = WRONG if o in wrong else FILL[o.kind]
        x, width = LEFT + o.begin * scale, (o.end - o.begin) * scale
        parts.append(
            _rectangle(x + 0.5, rows[o.lane] + 2, width - 1, ROW - 14, fill, stroke, 4)
        )
        long = (
            "waits"
            if o.kind == "wait"
            else f"{o.kind} {o.batch}" + (" wrong" if o in wrong else "")
        )
        short = "" if o.kind == "wait" else str(o.batch)
        label = next(
            (
                text
                for text in (long, long.removesuffix(" wrong"), short)
                if len(text) * LETTER < width
            ),
            "",
        )
        parts.append(
            _text(
                x + width / 2,
                rows[o.lane] + 22,
                label,
                WRONG[1] if o in wrong else INK,
                12,
            )
        )
    for source, target, time in device.waits:
        if source in rows and target in rows and source != target:
            down = rows[source] < rows[target]
            y1, y2 = (
                rows[source] + (ROW - 12 if down else 2),
                rows[target] + (2 if down else ROW - 12),
            )
            x = LEFT + time * scale
            parts.append(
                f'<line x1="{x:.1f}" y1="{y1}" x2="{x:.1f}" y2="{y2}" stroke="{MUTED}" stroke-width="1.6" '
                'marker-end="url(#head)"/>'
            )
    head = f'<path d="M0,0 L8,4 L0,8 z" fill="{MUTED}"/>'
    marker = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return SVG(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 35}" width="{WIDTH}" '
        f'height="{bottom + 35}" role="img" font-family="system-ui, sans-serif"><title>{_said(device)}</title>'
        f"<defs>{marker}{head}</marker></defs>{''.join(parts)}</svg>"
    )


def _said(device: Device) -> str:
    """The timeline in words."""
    done = [
        f"{o.kind} {o.batch} from {o.begin:g} to {o.end:g} ms"
        for o in device.operations
        if o.batch >= 0
    ]
    return "Timeline: " + ", ".join(done)


def _rectangle(
    x: float, y: float, width: float, height: float, fill: str, stroke: str, radius: int
) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}" rx="{radius}" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="1.4"/>'
    )


def _text(
    x: float,
    y: float,
    text: Any,
    fill: str,
    size: int,
    anchor: str = "middle",
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" '
        f'font-weight="{weight}">{text}</text>'
    )
