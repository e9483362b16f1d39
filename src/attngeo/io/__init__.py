"""Files, progress and threads: what several rooms need and none of them owns.

    files      write files and folders that appear complete or not at all; locks, the cache folder, text files
    archive    save results to one file each, and load them
    tables     tables with given columns, Parquet files with a digest
    progress   progress bars, log lines, warnings as lines
    threads    threads, the number of BLAS threads, waits that Ctrl-C ends
    names      short names of models, the name that was meant

Nothing is imported here, so that a progress bar does not load NumPy; import from the modules.
"""
