"""Workers on the nodes of a Ray cluster.

    notebook                                                    node (one actor each)
    --------                                                    ---------------------
    engine --> RayPool --> NodeLink ==== commands (calls) ====> Node --> ProcessPool --> worker processes
                  ^           ^                                   |                            |
                  |           +======= reports (results) =========+<------ shared memory ------+
                  +-- messages, batches in segments of the notebook

The scheduler in the notebook's process assigns every batch to a worker, wherever that runs, as it does with local
processes: seeds, order, retries and restarts are the same code. Ray only starts one actor per node and carries bytes.
Ray retries no call (`max_restarts=0`, `max_task_retries=0`): what was lost is dispatched again by the scheduler, and
late messages of a worker that was given up are recognized by its unique number.

State of a link

    opening --hello, versions agree--> open --close()--> closing --last report--> ended
       |                                |                   |
       +-- other versions: failed       +-- error of Ray ---+--> lost

Memory

    segment of a batch on the node     of the worker process there, until the report with its last bytes was stored
    report in Ray's object store       of the notebook, by its only reference, until its bytes were copied
    segment of a batch, notebook       of the pool's `IncomingBatches`, lent until the last array on it is deleted
    pickled dataset, object store      of its `ClusterSetup`, as long as workers may be started with that version

A report carries at most `window_bytes / (nodes * REPORTS)` bytes, and a node has `REPORTS` reports under way at most;
a batch that is larger travels in several reports. So the object stores hold a bounded number of bytes, whatever the
size of a batch, and Ray has no reason to spill.

Threads of the notebook: one for each pool, which places workers and makes all calls, so that no thread of an engine
waits for Ray; and one for each link, which waits for reports and copies. Of the actor: one that executes commands in
the order of their numbers, one that makes reports, two for everything else.

Taking tasks back: only the node knows what its worker has begun. `RayPool.revoke` asks it, once for each task, and
returns nothing; the node reports `TasksRevoked` with what its pool took back, and the scheduler dispatches that again.

What happens when an arrow fails

    worker -> node      The worker dies: as with local processes. The node reports it, the scheduler dispatches its
                        tasks to others, and the worker group replaces it.
    commands, reports   The actor or its node dies, or an object is lost before it was copied: the link is lost. The
                        actor is killed, since nobody knows what the report said. All its workers are reported as gone
                        through no fault of their batches, and are started on other nodes.
    report -> store     The store is full, though Ray has waited and tried to spill: an error in the loop, since the
                        node would lose its next reports, too.
    start of an actor   The node dies before: its workers are placed again, on another node.
    setup               It does not fit into an object store: an error in the loop.
    hello               The node lacks nbloader, or has another version: an error in the loop that names the node.
    ray.shutdown()      The links notice within half a second: no thread of ours waits inside Ray, which would end the
                        process. An error in the loop; the next epoch connects again, with another pool.
    notebook            It is killed: Ray ends the actors of the job, and their fork servers end the workers.
"""
