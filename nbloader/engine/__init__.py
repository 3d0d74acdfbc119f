"""The running state of one loader: lock, supervisor thread, worker group and iterators."""
