"""Growing a tree for each axis from the trees of the others."""
