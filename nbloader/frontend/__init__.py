"""What the dashboard and the explorer share: a widget that is served by the kernel, comm messages, outputs of cells."""
