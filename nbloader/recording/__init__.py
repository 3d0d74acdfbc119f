"""Recorded runs: `loader.record()` writes one, `nbloader.play()` shows it.

    loader -> dashboard.Feed -> Recorder -> file                                  while the loop runs
    file -> Recording -> Player -> player.js -> the dashboard's own core.js       without a loader

A recording has the messages that a dashboard would have got (what was on screen, four times a second), and the events
and statistics that reports and traces are made of. `file.py` describes the format. `player.js` takes the place of the
kernel: it gives the same messages to the same code in the browser, in the order and at the speed that the user wants.

**Threads.** A recorder has one thread, which does what a dashboard's does. The loop only appends each event to a list.

**Failures.** A disk that is full ends the recording, not the loop, and leaves a whole file. If the process is killed,
the file lacks the last two seconds and the mark of its end, which the player says. What is not a recording, is damaged,
or is of a later version is refused with `RecordingError`. A file contains no code; nothing in it becomes HTML.
"""

from __future__ import annotations

from nbloader.recording.player import Player, play
from nbloader.recording.recorder import Recorder

__all__ = ["Player", "Recorder", "play"]
