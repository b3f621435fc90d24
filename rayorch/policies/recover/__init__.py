"""What to do when nodes are lost under an attempt."""
