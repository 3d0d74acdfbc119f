"""What a panel of the dashboard is: the Python half. `core.js` describes the JavaScript half."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nbloader.metrics.hot_lines import HotLines

if TYPE_CHECKING:
    from nbloader.events import Event
    from nbloader.metrics.control import LoaderControl
    from nbloader.metrics.snapshot import Point, Snapshot


@dataclass(frozen=True, slots=True)
class Frame:
    """The state of a loader at one moment, and what happened since the frame before."""

    snapshot: Snapshot
    points: Sequence[Point] = ()
    """History of the plots, oldest first."""
    events: Sequence[Event] = ()
    """Events since the frame before, oldest first; in the first frame those that the loader still keeps."""
    origin: int = 0
    """Zero of the times in payloads, perf_counter ns."""
    now: int = 0
    """When the frame was taken, perf_counter ns."""
    num_workers: int = 0
    prefetch_factor: int | None = None
    lines: HotLines = field(default_factory=HotLines)
    """Lines that workers execute."""

    def ms(self, ns: int) -> float:
        """A perf_counter time as milliseconds since the origin; 0 for a missing one."""
        return round((ns - self.origin) / 1e6, 2) if ns else 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request of a panel's JavaScript half."""

    content: dict[str, Any]
    """JSON values."""
    buffers: list[bytes] = field(default_factory=list)
    """Binary data beside it."""


class Panel:
    """One panel of the dashboard; each dashboard has an instance of its own.

    A subclass needs `name`, `title` and `payload()`. The other methods have defaults. They are called with a lock held,
    never two at a time.
    """

    name: ClassVar[str]
    """Names the payload in messages, the CSS class `nbl-panel-<name>`, and the JavaScript module."""
    title: ClassVar[str] = ""
    """Heading; a panel without one cannot be folded."""
    unfolded: ClassVar[bool] = True
    """Whether it is unfolded at first. The page remembers what the user folds."""

    version: ClassVar[int] = 1
    """Of the payload and the news. Raise it when the JavaScript half can no longer draw older ones: the panel is then
    left out where a run is played that was recorded before."""

    @classmethod
    def script(cls) -> Path:
        """The JavaScript module: `<name>.js` beside the Python module."""
        return Path(inspect.getfile(cls)).with_name(f"{cls.name}.js")

    def payload(self, frame: Frame) -> Any:
        """The state to draw, as JSON values of bounded size. Sent if it differs from the last one.

        Texts from the dataset or from errors must be cut to a bounded length (`_util.format.clean`), not escaped.
        """
        raise NotImplementedError

    def news(self, frame: Frame) -> list[Any]:  # noqa: ARG002 - for subclasses
        """Entries that this frame adds to a history that the browser keeps, such as lines of a log. Each is sent once.

        Called once per frame, before `payload()`.
        """
        return []

    def history(self) -> list[Any]:
        """All entries that are kept, for a view that has just been opened."""
        return []

    def respond(self, request: Mapping[str, Any], loader: LoaderControl) -> Reply | None:  # noqa: ARG002 - for subclasses
        """Answer `api.request(...)` of the JavaScript half. Called on a thread of its own, without the lock."""
        return None

    def html(self, payload: Any) -> str:  # noqa: ARG002 - for subclasses
        """The static form of the panel, without scripts; all texts escaped. "" leaves it out."""
        return ""


def section(title: str, body: str, *, unfolded: bool = True) -> str:
    """A foldable section of the static dashboard; "" for an empty body."""
    if not body:
        return ""
    return (
        f'<details class="nbl-section"{" open" if unfolded else ""}><summary><span class="nbl-title">{title}</span>'
        f'</summary><div class="nbl-body">{body}</div></details>'
    )
