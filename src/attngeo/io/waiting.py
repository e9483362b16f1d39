"""`FOREVER`: the time limit of a wait that has none.

Once polars is imported, Ctrl-C no longer ends a wait for a lock without a time limit: polars handles the signal in a
way that lets the system resume the wait. It does not resume a wait that has a limit, however long.
"""

FOREVER = 1e9  # seconds
