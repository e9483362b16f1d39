"""Scores of a model during training, as records: one JSON object per measured step.

These names are imported here; they need no torch.
    track                       score the checkpoints that a run saved
    find_checkpoints            the checkpoints in the folder of a run
    RecordFile, read_records    the JSON Lines file that holds the records
    make_record, LayerFigures   one record, from the figures of every layer
    tracker_values              a record as the names and numbers that trackers show

The following modules import torch, so that their names are imported from them directly.
    watch            attach a Monitor to transformers' Trainer and its trackers
    lightning_monitor   LightningMonitor: a callback of Lightning's Trainer
    monitor          Monitor: a callback of transformers' Trainer, or a call in any torch loop
    live_scores      scores of all layers and heads on the device that holds their weights
    largest_logits   the largest attention logit of every head on a few rows
    probe_rows       the rows on which logits are measured
    loggers          pass values to a logger
"""

from attngeo.training.monitoring.records import LayerFigures, Record, RecordFile, make_record, read_records
from attngeo.training.monitoring.saved_checkpoints import SavedCheckpoint, find_checkpoints
from attngeo.training.monitoring.track import track
from attngeo.training.monitoring.tracker_values import tracker_values

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
