"""Files, caches, locks, progress bars and threads: what every room needs and none owns."""
