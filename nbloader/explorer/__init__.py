"""The explorer: look at the samples of a dataset or a loader, one by one, by the thousand, while it runs.

    view.js, explorer.js     what is on screen -> {"kind": "want", "indices": [...]}     one view, any number of them
    widget.Explorer          messages in, cards and samples out; selection; the static form
    fetcher.SampleFetcher    one thread: requests -> workers of the loader's kinds -> descriptions
    requests.RequestQueue    which sample is read next: on screen first, what was scrolled past dropped
    reader.SampleReader      in a worker: dataset[i], timed, under its own seed -> description
    fields, pictures, values in a worker: what a sample consists of, figures, PNG
    sources                  what can be explored

**State.** The dataset is in the workers (and the notebook's process, whose object is never called: worker threads call
it, where it cannot be sent to processes). The notebook's process keeps descriptions, 64 MB at most, never samples. The
browser keeps the cards of 1,500 samples. The selection is in Python; views show it.

**Threads.** Messages arrive on the main thread, on a subshell of the kernel, or inside a blocked `__next__`
(`frontend/comm.py`); their handlers change a queue and return. The fetcher's thread reads, and sends what was read. It
ends after a minute without a request, with its workers.

**Messages.** From a view: `want` (what is on screen; replaces the last one), `open`, `draws`, `order`, `select`,
`give_up`, `retry`. To views: `state`, `cards`, `sample`, `draws`, `order`, `selected`. Cards and samples carry pictures
as binary buffers. A lost view (a reloaded page) starts anew with `ready`; a lost kernel leaves the static form.

**Failures.** A sample that raises, hangs or kills its worker is shown in its place (`fetcher.py` lists them). Nothing
that a sample contains becomes HTML: `textContent` in the browser, `html.escape` in the static form.
"""

from __future__ import annotations

from nbloader.explorer.api import explore

__all__ = ["explore"]
