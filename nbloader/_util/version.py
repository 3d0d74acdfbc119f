"""The version of nbloader."""

__version__ = "0.2.0"
