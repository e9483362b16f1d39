"""Progress of long work: a bar on a terminal or in a notebook, lines in a log, and amounts in words.

ProgressBar           shows how many parts are done; can be passed wherever a callback is expected
Progress              the type of such callbacks
accepts_progress_bar  lets a function that takes a callback `progress` also take `progress=True` for a bar
is_main_process       whether this process is the one of many that prints
byte_text, time_left  amounts in words
"""

from attngeo.io.progress.amounts import byte_text, time_left
from attngeo.io.progress.progress_bar import Progress, ProgressBar, accepts_progress_bar, is_main_process

__all__ = ["Progress", "ProgressBar", "accepts_progress_bar", "byte_text", "is_main_process", "time_left"]
