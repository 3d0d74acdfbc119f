"""A batch and its parts: tasks, collation, the format in which a batch travels, payloads, chunks."""
