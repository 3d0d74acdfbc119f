"""Find out from measurements what limits the loop."""
