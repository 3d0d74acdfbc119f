"""The explorer: browse the samples of a dataset or a loader, even while the loader runs.

    drawing.js, statistics.js, explorer.js
                             what is on screen -> {"kind": "want", "indices": [...]}     one view, any number of them
    conversation.Conversation messages in, cards and samples out; what all views show: selection, order, notes
    widget.Explorer          what the user calls in the notebook
    cell_output              outputs of cells: the widget, and the static form
    fetcher.SampleFetcher    one thread: requests -> workers of the loader's kinds -> descriptions
    requests.RequestQueue    which sample is read next: those on screen first; those scrolled past are dropped
    reader.SampleReader      in a worker: dataset[i], timed, with its own seed -> description
    describer, kinds         in a worker: what a sample consists of; each kind of value in Python and in JavaScript
    pictures, values         in a worker: PNG, figures of arrays
    encoded, overview        in a worker: decodes files in bytes; finds the pictures of a sample, for masks and boxes
    overlays                 in a worker: fields that are drawn over the picture of another one
    sources, tables          what can be explored; rows of tables and files
    versions                 samples by two versions of a dataset, and how they differ
    declarations             what a dataset says about its samples: class names, tokenizer, folder
    scan, scanning           which samples a scan reads next; the scan that is running
    table, problems          facts about samples; problems of samples
    embedding                maps and similar samples, by vectors that the user has
    own_columns, arrangement values that the user adds; which samples are listed, in which order

**State.** Each worker has the dataset. The notebook's own object is called only by worker threads, which are used for
data in memory, for streams, and for a dataset that cannot be sent to processes. The fetcher keeps
descriptions, 64 MB at most; samples stay in the workers. The browser keeps the cards of 1,500 samples. The selection is
in Python; views show it.

**Threads.** Messages arrive on the main thread, on a subshell of the kernel, or inside a blocked `__next__`
(`frontend/comm.py`); their handlers change a queue and return. The fetcher's thread reads, and sends what was read. It
ends after a minute without a request, with its workers.

**Messages.** From a view: `want` (what is on screen; replaces the last one), `open`, `draws`, `order`, `select`,
`give_up`, `retry`, `scan`, `stats`, `filter`, `columns`, `code`, `lasso`, `similar`. To views: `state`, `cards`,
`sample`, `draw`, `delivered`, `order`, `selected`, `again`, `show`, `scan`, `stats`, `columns`, `code`, `plot`. Cards
and samples carry pictures as binary buffers. A lost view (a reloaded page) starts over with `ready`; a lost kernel
leaves the static form.

**Failures.** A sample that raises, hangs or kills its worker is shown in its place (`fetcher.py` lists them). Nothing
that a sample contains becomes HTML: `textContent` in the browser, `html.escape` in the static form.
"""

from __future__ import annotations

from nbloader.explorer.api import explore

__all__ = ["explore"]
