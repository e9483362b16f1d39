"""The initialisation experiment: which initialisation saves training steps, measured over paired seeds.

    python -m experiments.initialisation prepare|run|speed|table|figures|page|overlap|frequencies

grid             the cells of the experiment: initialisation, learning rate, seed
text             the text of the runs and its tokens
run, claims      train the cells that are not finished, in slices of time; several processes may share them
low_loss         runs that end at the first loss below a given one
fine_tuning      accuracy of a trained model on two tasks made from the text
speed            steps per second of each architecture
runs             finished runs and their files
statistics       compare initialisations over paired seeds
own_rate         the same, each initialisation at its own best learning rate
table, figures   the comparison as text and as figures
report           a folder with all tables and figures
page             the tables of RESULTS.md
"""

__all__ = [
    "claims",
    "figures",
    "fine_tuning",
    "grid",
    "low_loss",
    "own_rate",
    "page",
    "report",
    "run",
    "runs",
    "speed",
    "statistics",
    "table",
    "text",
]
