"""A batch and its parts: tasks, collation, memory layout, payloads, chunks, serialization."""
