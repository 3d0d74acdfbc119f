"""Record runs with `loader.record()`, and show them with `nbloader.play()`.

    loader -> dashboard.Feed -> Recorder -> file                                  while the loop runs
    file -> Recording -> Player -> player.js -> the dashboard's own core.js       without a loader

A recording contains the messages that a dashboard would have received (the state of the display, four times a second),
and the events and statistics from which reports and traces are built. `file.py` describes the format. `player.js`
replaces the kernel: it passes the same messages to the same code in the browser, at the position and speed that the
user chooses.

**Threads.** A recorder has one thread, which observes the loader as the thread of a dashboard does. The loop only
appends each event to a deque.

**Failures.** A full disk ends the recording, not the loop, and leaves a readable file. If the process is killed, the
file lacks the last two seconds and its `End` entry, and the player shows a note. A file that is not a recording, is
damaged, or has another version of the format raises `RecordingError`. A file contains no code, and nothing in it
becomes HTML.
"""

from __future__ import annotations

from nbloader.recording.player import Player, play
from nbloader.recording.recorder import Recorder

__all__ = ["Player", "Recorder", "play"]
