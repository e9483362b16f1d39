"""Initialisations of the query and key weights of a model, written in place before training.

The symmetric initialisation
    `symmetric_init_`         W_q = W_k: the form of every head is symmetric
Controls, which share some of its properties
    `independent_init_`       the scale without symmetry
    `negative_init_`          symmetry, but tokens avoid themselves
    `rotated_init_`           the norms without symmetry
    `self_attending_init_`    attention of tokens to themselves with less symmetry
    `skewed_init_`            attention of tokens to themselves without symmetry
    `indefinite_init_`        symmetry, but tokens neither attend to themselves nor avoid themselves
    `large_symmetric_init_`   the symmetric initialisation with the norm of the skewed one
    `small_skewed_init_`      the skewed initialisation with the norm of the symmetric one
Published initialisations, for comparison
    `authors_init_`           the recipe of arXiv 2502.10927
    `mimetic_init_`           a variant of mimetic initialisation, arXiv 2305.09828
All of them
    `INITIALISATIONS`, `initialise_`, `check_initialisation`   by name
    `Initialisation`, `InitialisedLayer`                       what they return
    `Scale`, `Seed`                                            types of their options
"""

from attngeo.training.initialisation.authors import authors_init_
from attngeo.training.initialisation.by_name import INITIALISATIONS, check_initialisation, initialise_
from attngeo.training.initialisation.controls import (
    indefinite_init_,
    independent_init_,
    negative_init_,
    rotated_init_,
    self_attending_init_,
    skewed_init_,
)
from attngeo.training.initialisation.equal_norm import large_symmetric_init_, small_skewed_init_
from attngeo.training.initialisation.mimetic import mimetic_init_
from attngeo.training.initialisation.result import Initialisation, InitialisedLayer
from attngeo.training.initialisation.rotations import Seed
from attngeo.training.initialisation.scale import Scale
from attngeo.training.initialisation.symmetric import symmetric_init_

__all__ = [
    "INITIALISATIONS",
    "Initialisation",
    "InitialisedLayer",
    "Scale",
    "Seed",
    "authors_init_",
    "check_initialisation",
    "indefinite_init_",
    "independent_init_",
    "initialise_",
    "large_symmetric_init_",
    "mimetic_init_",
    "negative_init_",
    "rotated_init_",
    "self_attending_init_",
    "skewed_init_",
    "small_skewed_init_",
    "symmetric_init_",
]
