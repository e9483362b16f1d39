"""The command line.

app, main      the command `attngeo` and its entry point (module `app`)

Commands, one module per group
    score          attngeo score
    published      attngeo published
    organization   attngeo organize, attngeo invariance
    report         attngeo report
    explore        attngeo explore
    dynamics       attngeo pretrain, attngeo track
    atlas          attngeo atlas add, status, query, export
    demo           attngeo demo

    common         options, errors and output that the commands share
"""

from attngeo.cli.app import app, main

__all__ = ["app", "main"]
