"""Where a snapshot says that each batch is, with real workers."""

from __future__ import annotations

from pathlib import Path

from datasets import Hangs, wait_for

from nbloader import DataLoader


def test_batches_of_other_workers_behind_a_hanging_one_are_listed_by_number(tmp_path: Path):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    dataset = Hangs(400, bad=12, flag=str(flag), hung=str(hung))
    with DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=2) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)

        def made_by_another():
            s = loader.stats()
            stuck = next((w for w in s.workers if w.batch == 3), None)
            made = stuck is not None and any(batch.worker != stuck.worker for batch in s.made)
            return (s, stuck) if made else None

        wait_for(hung.exists, "a worker that hangs")
        s, stuck = wait_for(made_by_another, "a batch behind the hanging one")
        assert stuck.held[0] == 3
        assert s.at == 2
        assert s.batches_done == 3
        early = [m for m in s.made if not m.in_order]
        assert early == list(s.made)
        assert all(m.number > 3 and 0 < m.fetch_begin <= m.fetched <= m.collated <= m.received for m in early)
        flag.unlink()
        loader.restart_workers([stuck.worker])
        assert next(batches).tolist() == [12, 13, 14, 15]
        del batches


def test_after_a_break_the_batch_of_a_busy_worker_is_marked_as_unwanted(tmp_path: Path):
    flag, hung = tmp_path / "flag", tmp_path / "hung"
    flag.touch()
    dataset = Hangs(400, bad=6, flag=str(flag), hung=str(hung))
    with DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True) as loader:
        for _ in loader:
            wait_for(hung.exists, "the hang")
            break
        s = wait_for(lambda: (s := loader.stats()).iterators == 0 and s, "the end of the iterator")
        assert s.workers[0].left
        assert s.in_flight == 0
        assert s.at is None
