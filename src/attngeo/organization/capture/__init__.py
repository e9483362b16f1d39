"""From a model and an input to the network tensor: queries × keys × heads."""
