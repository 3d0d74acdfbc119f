"""Shared by the dashboard and the explorer: a widget whose assets come from the kernel, comm messages, cell outputs."""
