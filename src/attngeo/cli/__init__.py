"""The command line.

app, main      the command `attngeo` and its entry point (module `app`)

Commands, one module per group
    score          attngeo score, attngeo published
    organization   attngeo organize, attngeo invariance
    prune          attngeo prune
    compare        attngeo compare
    report         attngeo report, attngeo explore
    training       attngeo pretrain, attngeo track
    atlas          attngeo atlas add, organize, status, query, plot, published, export
    demo           attngeo demo

    options        what turns a function into a command, and the options that commands share
    common         errors and output that the commands share
"""

from attngeo.cli.app import app, main

__all__ = ["app", "main"]
