"""The Haar expansion of a tensor and the controls it is compared with."""
