"""The initialisation experiment: which initialisation saves training steps, measured over paired seeds.

    python -m experiments.initialisation prepare|run|speed|table|figure|page|overlap|frequencies

grid             the cells of the experiment: initialisation, learning rate, seed
text             the text of the runs and its tokens
run, claims      train the cells that are not finished, in slices of time; several processes may share them
fine_tuning      accuracy of a trained model on two tasks made from the text
speed            steps per second of each architecture
runs             finished runs and their files
statistics       compare initialisations over paired seeds
own_rate         the same, each initialisation at its own best learning rate
table, figure    the comparison as text, and of all architectures as a figure
page             the tables of RESULTS.md
"""

__all__ = [
    "claims",
    "figure",
    "fine_tuning",
    "grid",
    "own_rate",
    "page",
    "run",
    "runs",
    "speed",
    "statistics",
    "table",
    "text",
]
