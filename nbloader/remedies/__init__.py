"""What to write instead of a slow line: remedies that are recognized in the user's code, and tried on its samples."""
