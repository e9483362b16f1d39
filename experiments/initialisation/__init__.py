"""The initialisation experiment: which initialisation saves training steps, measured over paired seeds.

    python -m experiments.initialisation prepare|run|speed|table|figures

grid             the cells of the experiment: initialisation, learning rate, seed
packed_tokens    token files compressed for transport, and back
run              train the cells that are not finished, in slices of time
fine_tuning      accuracy of a trained model on two tasks made from the text
speed            steps per second of each architecture
runs             finished runs and their files
statistics       compare initialisations over paired seeds
table, figures   the comparison as text and as figures
report           a folder with all tables and figures
"""

__all__ = [
    "claims",
    "figures",
    "fine_tuning",
    "grid",
    "packed_tokens",
    "report",
    "run",
    "runs",
    "speed",
    "statistics",
    "table",
]
