"""The loaders in distributed training, side by side.

    each rank:    DataLoader -> reporter: a thread, once a second -> rank-3.json (record.py)
    any process:  rank-*.json -> nbloader.ranks(folder) -> compare.py: who holds up whom, in sentences -> a table

Each rank writes one small file into a folder that all can reach, named by the environment variable `NBLOADER_RANKS`. A
file replaces the one before in one step, so a reader never sees half of one. Nothing is sent, no port is opened, and no
rank waits for another one. A rank that has died leaves its last file: its process is gone, or the file is too old.
"""

from __future__ import annotations

FOLDER = "NBLOADER_RANKS"
"""The environment variable that names the folder."""
