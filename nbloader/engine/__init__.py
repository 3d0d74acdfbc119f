"""The running state of one loader: the thread that owns it, the worker group, and the iterators."""
