"""Workers on the nodes of a Ray cluster.

    notebook                                                    node (one actor each)
    --------                                                    ---------------------
    engine --> RayPool --> NodeLink ==== commands (calls) ====> Node --> ProcessPool --> worker processes
                  ^           ^                                   |                            |
                  |           +======= reports (results) =========+<------ shared memory ------+
                  +-- messages, batches in segments of the notebook

The scheduler in the notebook's process assigns every batch to a worker, wherever the worker runs, as it does with local
processes: the same code handles seeds, order, retries and restarts. Ray only starts one actor per node and transfers
bytes. Ray retries no calls (`max_restarts=0`, `max_task_retries=0`). Instead, the scheduler dispatches lost batches
again. Late messages of a worker that was given up are recognized by the worker's unique number.

State of a link

    opening --hello, versions agree--> open --close()--> closing --last report--> ended
       |                                |                   |
       +-- other versions: failed       +-- error of Ray ---+--> lost

Who owns which memory, and for how long

    segment of a batch on the node     the worker process on the node, until the report with its last bytes is stored
    report in Ray's object store       the notebook, which has the only reference, until the bytes are copied
    segment of a batch, notebook       the pool's `IncomingBatches`; lent until the last array on it is deleted
    pickled dataset, object store      its `ClusterSetup`, as long as workers may be started with that version

A report carries at most `window_bytes / (nodes * REPORTS)` bytes, and each node has at most `REPORTS` reports in
flight. A larger batch is sent in several reports. The object stores therefore hold a bounded number of bytes, whatever
the size of a batch, and Ray has no reason to spill.

The notebook has one thread for each pool, which places workers and makes all calls, so that no thread of an engine
waits for Ray. It has one thread for each link, which waits for reports and copies batches. The actor has one thread
that executes commands in the order of their numbers, one that creates reports, and two for everything else.

What happens when an arrow fails

    worker -> node      The worker dies: handled as with local processes. The node reports it, the scheduler dispatches
                        its tasks to other workers, and the worker group replaces it.
    commands, reports   The actor or its node dies, or an object is lost before it was copied: the link is lost. The
                        actor is killed, since the contents of the report are unknown. All its workers are reported as
                        gone through no fault of their batches, and are started on other nodes.
    report -> store     The store is full, although Ray has waited and tried to spill: the training loop gets an error,
                        since the node would lose its next reports, too.
    start of an actor   The node dies before the actor runs: its workers are placed again, on another node.
    setup               It does not fit into an object store: the training loop gets an error.
    hello               The node lacks nbloader or has another version: the training loop gets an error that names the
                        node.
    ray.shutdown()      The links notice within half a second: no thread of nbloader waits inside Ray, because Ray would
                        then end the process. The training loop gets an error; the next epoch connects again, with
                        another pool.
    notebook            It is killed: Ray ends the actors of the job, and their zygotes end the workers.
"""
