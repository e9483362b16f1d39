"""The tokens that rxnfp's pre-trained BERT knows.

SMILES are cut into atoms, bonds and brackets, and then once more at every punctuation mark, as BERT's own tokenizer
does: "[N+]" becomes "[", "N", "+" and "]". Marks that the vocabulary lacks become [UNK], also ">". The vocabulary has
entries such as "[N+]" and ">>" as well, but the pre-trained model never predicts them: where they are masked, it gives
them a probability of about e⁻²⁰, and in the place of ">>" it expects [UNK].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_PATTERN = r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"


def smiles_tokenizer(vocabulary: Path, *, whole_atoms: bool = False) -> Any:
    """Return a tokenizer of SMILES with the vocabulary of rxnfp.

    whole_atoms: keep atoms in brackets and the arrow whole, as rxnfp's fine-tuned models read them
    """
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Punctuation, Sequence, Split
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(vocabulary.read_text("utf-8").splitlines())}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    atoms = Split(Regex(_PATTERN), "isolated")
    tokenizer.pre_tokenizer = atoms if whole_atoms else Sequence([atoms, Punctuation("isolated")])
    around = [("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    names = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)
