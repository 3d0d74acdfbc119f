"""The search of the documentation's site, as `make docs` has built it."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from .conftest import missing

pytestmark = [
    pytest.mark.browser,
    pytest.mark.leaves_behind("the browser's driver keeps threads of its own"),
]

SITE = Path(__file__).parent.parent.parent / "build" / "site"
WORDS = {
    "fix/idle-gpu": ("gpu idle", "my gpu is idle", "gpu utilization low", "starving"),
    "fix/hangs": (
        "loader hangs",
        "dataloader stuck",
        "deadlock",
        "dataloader deadlock",
        "hangs in the middle of an epoch",
        "num_workers hangs",
        "hangs at the end of an epoch",
        "dataloader hangs after last batch",
        "DDP hangs",
        "nccl timeout",
    ),
    "fix/worker-killed": (
        "worker killed",
        "killed by signal",
        "RuntimeError: DataLoader worker is killed",
        "OOM killer",
        "worker out of memory",
        "memory grows",
        "memory leak",
        "bus error",
        "out of shared memory",
        "shm",
    ),
    "troubleshooting": ("same crops", "same random crops"),
    "fix/cant-get-attribute": (
        "can't get attribute",
        "AttributeError: Can't get attribute 'Photos' on <module '__main__' (built-in)>",
        "cannot pickle",
    ),
    "fix/too-many-open-files": ("too many open files", "OSError: [Errno 24] Too many open files", "ancdata"),
    "how-to/common-patterns": (
        "deterministic validation",
        "same crops every epoch",
        "duplicate samples",
        "class imbalance",
        "WeightedRandomSampler",
    ),
    "how-to/kinds-of-data": (
        "parquet",
        "read parquet",
        "image folder",
        "s3",
        "millions of files",
        "webdataset",
        "video",
    ),
    "explanation/order-and-seeds": ("seed workers",),
    "how-to/open-files": ("hdf5", "hdf5 slow", "h5py slow workers"),
    "how-to/resume-a-training": ("resume in the middle of an epoch", "resume after a crash", "checkpoint"),
    "how-to/use-in-frameworks": ("lightning", "lightning trainer", "hugging face trainer", "accelerate"),
    "install": ("go back to torch", "revert to torch", "uninstall", "remove nbloader"),
    "slow": ("slow loader", "my loader is slow", "slow loading", "slow sample", "slowest sample"),
}
"""What people search for, by the page that they need."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and logs nothing."""

    def log_message(self, *_args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def search_page() -> Iterator[str]:
    """The address of the search page."""
    if not (SITE / "search.html").exists():
        missing("the site is not built: run make docs")
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/search.html"
        server.shutdown()
        thread.join()


def test_the_search_finds_the_page_for_a_problem_among_the_first_three(browser: Any, search_page: str) -> None:
    page = browser.new_page()
    try:
        late = {}
        for wanted, searches in WORDS.items():
            for words in searches:
                page.goto(f"{search_page}?q={quote_plus(words)}")
                page.locator("p.search-summary").get_by_text(re.compile("found|did not match")).wait_for()
                links = page.locator("#search-results ul.search > li > a:first-of-type")
                first = [link.get_attribute("href") for link in links.all()[:3]]
                if not any(link.split(".html")[0] == wanted for link in first):
                    late[words] = first
        assert not late
    finally:
        page.close()
