"""The command line.

app, main      the command `attngeo` and its entry point (module `app`)

Commands, one module per group
    score          attngeo score, attngeo published, attngeo demo
    organization   attngeo organize, attngeo invariance
    prune          attngeo prune
    compare        attngeo compare
    report         attngeo report, attngeo explore
    training       attngeo pretrain, attngeo track
    atlas          attngeo atlas add, organize, status, query, plot, published, export

    common         what the commands share: what turns a function into a command, options, errors, output
"""

from attngeo.cli.app import app, main

__all__ = ["app", "main"]
