"""Files, caches, locks, progress bars and threads: what several rooms need and none of them owns.

    atomic     write files and folders that appear complete or not at all
    archive    save results to one file each, and load them
    plain      convert results to and from plain values
    cache      the cache folder, and files in it
    lock       a lock on a folder
    prefetch   read the next items of an iterable in a thread
    progress   progress bars and log lines
    messages   warnings and log messages as single lines
    names      short names of models, the name that was meant
    parquet    tables in Parquet files, with a digest
    tables     tables with given columns
    text       read text files
    threads    threads, and the number of BLAS threads
    waiting    waits that Ctrl-C ends

Nothing is imported here, so that a progress bar does not load numpy; import from the modules.
"""

__all__ = [
    "archive",
    "atomic",
    "cache",
    "lock",
    "messages",
    "names",
    "parquet",
    "plain",
    "prefetch",
    "progress",
    "tables",
    "text",
    "threads",
    "waiting",
]
