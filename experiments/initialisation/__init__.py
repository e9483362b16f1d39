"""The initialisation experiment: which initialisation saves training steps, over paired seeds."""
