"""A running transformers model: loading it, its attention modules, its query and key parameters, hooks."""
