"""Training data: documents of a corpus, a WordPiece tokenizer, and token files.

documents, check_sources            read the documents of text, JSONL and parquet files and of hub data sets
train_tokenizer, load_tokenizer     a WordPiece tokenizer, trained on a corpus or read from a file
prepare_tokens                      tokenise a corpus once, into `train.bin` and `valid.bin`
Tokens, open_tokens                 token files that were prepared before
"""

from attngeo.training.data.corpus import check_sources, documents
from attngeo.training.data.tokens import Tokens, load_tokenizer, open_tokens, prepare_tokens, train_tokenizer

__all__ = [
    "Tokens",
    "check_sources",
    "documents",
    "load_tokenizer",
    "open_tokens",
    "prepare_tokens",
    "train_tokenizer",
]
