"""Tests in a real browser: a package, so that its server and browser end with its last test.

While the browser's driver runs, its event loop counts as running in this thread: tests that call `asyncio.run` fail.
"""
