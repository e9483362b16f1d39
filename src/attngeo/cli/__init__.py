"""The command line.

app, main      the command `attngeo` and its entry point (module `app`)

Commands, one module per group
    score          attngeo score, attngeo published
    organization   attngeo organize, attngeo invariance
    prune          attngeo prune
    compare        attngeo compare
    report         attngeo report
    explore        attngeo explore
    training       attngeo pretrain, attngeo track
    atlas          attngeo atlas add, status, query, export
    atlas_results  attngeo atlas organize, plot, published
    demo           attngeo demo

    options        options that the commands share
    common         errors and output that the commands share
    ray_option     the option --ray of the atlas
"""

from attngeo.cli.app import app, main

__all__ = ["app", "main"]
