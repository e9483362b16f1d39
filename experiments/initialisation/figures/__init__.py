"""Figures of the initialisation experiment.

loss_figure             the held-out loss of every seed over training, and its paired difference from a reference
saved_figure            steps saved and difference in final loss, with intervals over seeds
form_figure             symmetry and directionality of every layer over training, with their nulls
architecture_figure     difference in final loss, a row of intervals per architecture
scale_figure            final loss and end of the first plateau over the scale of the initialisation
"""

from experiments.initialisation.figures.architectures import architecture_figure
from experiments.initialisation.figures.form import form_figure
from experiments.initialisation.figures.losses import loss_figure
from experiments.initialisation.figures.saved import saved_figure
from experiments.initialisation.figures.scale import scale_figure

__all__ = ["architecture_figure", "form_figure", "loss_figure", "saved_figure", "scale_figure"]
