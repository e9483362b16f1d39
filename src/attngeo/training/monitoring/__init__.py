"""Scores of a model during training, as records: one JSON object per measured step.

These names are imported here; they need no torch.
    track                       score the checkpoints that a run saved
    find_checkpoints            the checkpoints in the folder of a run
    RecordFile, read_records    the JSON Lines file that holds the records
    make_record, LayerFigures   one record, from the figures of every layer
    tracker_values              a record as the names and numbers that trackers show

The following modules import torch, so that their names are imported from them directly.
    monitor             Monitor: a call in any torch loop, or a callback of transformers' Trainer; watch
    lightning_monitor   LightningMonitor: a callback of Lightning's Trainer
    measure             what a Monitor measures: scores of layers and heads, and their largest attention logits
"""

from attngeo.training.monitoring.records import (
    LayerFigures,
    Record,
    RecordFile,
    make_record,
    read_records,
    tracker_values,
)
from attngeo.training.monitoring.track import SavedCheckpoint, find_checkpoints, track

__all__ = [
    "LayerFigures",
    "Record",
    "RecordFile",
    "SavedCheckpoint",
    "find_checkpoints",
    "make_record",
    "read_records",
    "track",
    "tracker_values",
]
