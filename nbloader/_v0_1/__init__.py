"""Modules under the names that they had in nbloader before its packages. Pickles of that version name them.

`nbloader.__path__` includes this folder, so that `nbloader.torchlike`, for example, is found here.
"""
