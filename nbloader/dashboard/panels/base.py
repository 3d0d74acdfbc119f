"""Base class of the panels: their Python half. `core.js` describes their JavaScript half."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from nbloader.frontend.scripted import Scripted
from nbloader.metrics.hot_lines import HotLines

if TYPE_CHECKING:
    from nbloader.events import Event
    from nbloader.metrics.control import LoaderControl
    from nbloader.metrics.snapshot import Point, Snapshot


@dataclass(frozen=True, slots=True)
class Frame:
    """The state of a loader at one moment, and what happened since the previous frame."""

    snapshot: Snapshot
    points: Sequence[Point] = ()
    """History of the plots, oldest first."""
    events: Sequence[Event] = ()
    """Events since the previous frame, oldest first. The first frame has all events that the loader still keeps."""
    origin: int = 0
    """Origin of the times in payloads, perf_counter ns."""
    now: int = 0
    """When the frame was taken, perf_counter ns."""
    num_workers: int = 0
    prefetch_factor: int | None = None
    lines: HotLines = field(default_factory=HotLines)
    """Lines of code that workers execute."""

    def ms(self, ns: int) -> float:
        """Convert a perf_counter time to milliseconds since the origin; 0 if the time is missing (0)."""
        return round((ns - self.origin) / 1e6, 2) if ns else 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request from a panel's JavaScript half."""

    content: dict[str, Any]
    """JSON values."""
    buffers: list[bytes] = field(default_factory=list)
    """Binary data that is sent with the content."""


class Panel(Scripted):
    """One panel of the dashboard. Each dashboard has its own instance.

    A subclass needs `name`, `title` and `payload()`. The other methods have defaults. The dashboard calls all methods
    except `respond()` with its lock held, so never two of them at a time.
    """

    name: ClassVar[str]
    """Name of the payload in messages, of the CSS class `nbl-panel-<name>`, and of the JavaScript module."""
    title: ClassVar[str] = ""
    """Heading. A panel without a heading cannot be folded."""
    unfolded: ClassVar[bool] = True
    """Whether the panel is initially unfolded. The page remembers which panels the user folds."""

    version: ClassVar[int] = 1
    """Version of the payload and the news. Increase it when the JavaScript half can no longer draw older versions. The
    panel is then left out when an older recording is played."""

    changed: Callable[[], object] = staticmethod(lambda: None)
    """Set by the dashboard. Call it when the payload changes without an event of the loader, such as in `respond()`."""

    def payload(self, frame: Frame) -> Any:
        """Return the state to draw, as JSON values of bounded size. It is sent if it differs from the last one.

        Text from the dataset or from errors must be cut to a bounded length (`_util.format.clean`) but not escaped.
        """
        raise NotImplementedError

    def news(self, frame: Frame) -> list[Any]:  # noqa: ARG002 - for subclasses
        """Return the entries that this frame adds to a history in the browser, such as lines of a log.

        Each entry is sent once. Called once per frame, before `payload()`.
        """
        return []

    def history(self) -> list[Any]:
        """Return all entries that are kept, for a view that has just been opened."""
        return []

    def respond(self, request: Mapping[str, Any], loader: LoaderControl) -> Reply | None:  # noqa: ARG002 - for subclasses
        """Answer `api.request(...)` of the JavaScript half. Called on a separate thread, without holding the lock."""
        return None

    def html(self, payload: Any) -> str:  # noqa: ARG002 - for subclasses
        """Return the static form of the panel, without scripts and with all text escaped; "" to leave it out."""
        return ""


def section(title: str, body: str, *, unfolded: bool = True) -> str:
    """Build a foldable section of the static dashboard; "" if the body is empty."""
    if not body:
        return ""
    return (
        f'<details class="nbl-section"{" open" if unfolded else ""}><summary><span class="nbl-title">{title}</span>'
        f'</summary><div class="nbl-body">{body}</div></details>'
    )
