"""The initialisation experiment: which initialisation saves training steps, measured over paired seeds.

    python -m experiments.initialisation prepare|run|speed|table|figures|page|overlap|frequencies

grid             the cells of the experiment: initialisation, learning rate, seed
packed_tokens    token files compressed for transport, and back
run, claims      train the cells that are not finished, in slices of time; several processes may share them
fine_tuning      accuracy of a trained model on two tasks made from the text
speed            steps per second of each architecture
runs             finished runs and their files
statistics       compare initialisations over paired seeds
own_rate         the same, each initialisation at its own best learning rate
table, figures   the comparison as text and as figures
report           a folder with all tables and figures
page             the tables of docs/initialisation.md
overlap          how much of a held-out text occurs in the training text
frequencies      the loss of a model that knows only how often each token occurs
"""

__all__ = [
    "claims",
    "figures",
    "fine_tuning",
    "frequencies",
    "grid",
    "overlap",
    "own_rate",
    "packed_tokens",
    "page",
    "report",
    "run",
    "runs",
    "speed",
    "statistics",
    "table",
]
