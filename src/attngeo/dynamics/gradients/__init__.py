"""A backward pass as the rank-1 terms that it adds to the form of every head."""
