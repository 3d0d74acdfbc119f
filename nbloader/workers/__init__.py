"""The workers that load batches: processes, threads, and the code that runs in them."""
