"""Reaction strings (SMILES) from a small generator, and a tokenizer for them: texts for the BERT of rxnfp."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

_PATTERN = r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"

_CHAINS = ("C", "CC", "CCC", "C(C)C", "CCCC", "CC(C)C", "C1CCCC1", "C1CCCCC1", "CCOC", "CC(F)(F)F")
_RINGS = (
    "c1ccccc1", "c1ccc(F)cc1", "c1ccc(Cl)cc1", "c1ccc(OC)cc1", "c1ccncc1", "c1ccc(C)cc1", "c1ccc(C#N)cc1", "c1ccsc1",
    "c1ccc(C(F)(F)F)cc1", "c1ccc2ccccc2c1", "c1cnc(N)nc1", "c1ccc([N+](=O)[O-])cc1",
)  # fmt: skip
# A reaction: reactants >> product, with {a} and {b} for two substituents.
_REACTIONS = (
    "O=C(O){a}.N{b}>>O=C(N{b}){a}",  # amide coupling
    "O=C(Cl){a}.N{b}>>O=C(N{b}){a}",
    "O=C(O){a}.O{b}>>O=C(O{b}){a}",  # esterification
    "O=C(O{b}){a}.[OH-].[Na+]>>O=C(O){a}",  # hydrolysis
    "Br{a}.OB(O){b}.[Pd]>>{a}{b}",  # Suzuki coupling
    "Br{a}.N{b}.[Pd]>>N({a}){b}",  # Buchwald-Hartwig amination
    "O=C{a}.N{b}.[BH4-].[Na+]>>C({a})N{b}",  # reductive amination
    "BrC{a}.O{b}.[K+]>>O({b})C{a}",  # ether synthesis
    "O=C({a}){b}.[BH4-].[Na+]>>OC({a}){b}",  # reduction of a ketone
    "O=S(=O)(Cl){a}.N{b}>>O=S(=O)(N{b}){a}",  # sulfonamide
    "CC(C)(C)OC(=O)N{a}.Cl>>N{a}",  # removal of a protecting group
    "N#C{a}.[H][H].[Ni]>>NC{a}",
)


def reactions(count: int, seed: int) -> list[str]:
    """Return `count` reaction strings; different seeds give different ones."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        a, b = (draw.choice(_RINGS if draw.random() < 0.6 else _CHAINS) for _ in range(2))
        text = draw.choice(_REACTIONS).format(a=a, b=b)
        solvent = draw.choice(("", "", "CN(C)C=O.", "C1CCOC1.", "ClCCl.", "CO.", "Cc1ccccc1.", "CC#N."))
        found.append(solvent + text)
    return found


def smiles_tokenizer(vocabulary: Path) -> Any:
    """Return a tokenizer that cuts SMILES into atoms, bonds and brackets, with the vocabulary of rxnfp."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(vocabulary.read_text("utf-8").splitlines())}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Split(Regex(_PATTERN), "isolated")
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
