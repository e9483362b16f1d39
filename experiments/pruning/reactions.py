"""Reaction strings (SMILES) from a small generator: texts for the BERT of rxnfp.

The product of each reaction follows from its reactants. Reactants, reagents and solvents are sorted and separated by
dots, the ions of a salt are joined by "~". Molecules are written like canonical SMILES, as far as that is possible
without a chemistry library: an end of a chain comes first, and ring numbers are used again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True)
class Block:
    """A building block with one place of attachment."""

    tail: str  # written from the place of attachment on; its rings are numbered from 1 on
    head: str = ""  # written from an end of a chain on, with * at the place of attachment; empty: it has no such end

    def on(self, group: str) -> str:
        """Return a molecule: the block with a functional group that is written from the place of attachment on.

        >>> Block("c1ccc(C)cc1", "Cc1ccc(*)cc1").on("C(=O)O"), Block("c1ccccc1").on("N")
        ('Cc1ccc(C(=O)O)cc1', 'Nc1ccccc1')
        """
        return self.head.replace("*", group) if self.head else _REVERSED.get(group, group) + self.tail


# Functional groups as they are written when they come first.
_REVERSED = {
    "C(=O)O": "O=C(O)", "C(=O)Cl": "O=C(Cl)", "C=O": "O=C", "S(=O)(=O)Cl": "O=S(=O)(Cl)", "B(O)O": "OB(O)", "CO": "OC",
    "CBr": "BrC", "C(=O)OC": "COC(=O)", "[N+](=O)[O-]": "O=[N+]([O-])", "NC(=O)OC(C)(C)C": "CC(C)(C)OC(=O)N",
}  # fmt: skip

_ARYL = (
    Block("c1ccccc1"), Block("c1ccc(F)cc1"), Block("c1ccc(Cl)cc1"), Block("c1cccc(Cl)c1"), Block("c1ccccc1F"),
    Block("c1ccc(C(F)(F)F)cc1"), Block("c1ccc(Cl)c(Cl)c1"), Block("c1ccc(F)cc1F"), Block("c1cccnc1"), Block("c1ccncc1"),
    Block("c1cccs1"), Block("c1ccc2ccccc2c1"), Block("c1cccc(C(F)(F)F)c1"), Block("c1ccc(OC(F)(F)F)cc1"),
    Block("c1ccc(C#N)cc1", "N#Cc1ccc(*)cc1"), Block("c1ccc(OC)cc1", "COc1ccc(*)cc1"),
    Block("c1cccc(OC)c1", "COc1cccc(*)c1"), Block("c1ccc(C)cc1", "Cc1ccc(*)cc1"), Block("c1ccccc1C", "Cc1ccccc1*"),
    Block("c1ccc(C(C)(C)C)cc1", "CC(C)(C)c1ccc(*)cc1"), Block("c1ccc(OC)c(OC)c1", "COc1ccc(*)cc1OC"),
    Block("c1ccc(S(C)(=O)=O)cc1", "CS(=O)(=O)c1ccc(*)cc1"), Block("c1ccc(OCC)cc1", "CCOc1ccc(*)cc1"),
)  # fmt: skip
_ALKYL = (
    Block("Cc1ccccc1"), Block("Cc1ccc(F)cc1"), Block("Cc1ccc(Cl)cc1"), Block("C1CCCCC1"), Block("C1CC1"),
    Block("CCc1ccccc1"), Block("CC1CC1"), Block("CC", "CC*"), Block("CCC", "CCC*"), Block("C(C)C", "CC(C)*"),
    Block("CC(C)C", "CC(C)C*"), Block("CCCC", "CCCC*"), Block("CCOC", "COCC*"),
    Block("Cc1ccc(OC)cc1", "COc1ccc(C*)cc1"),
)  # fmt: skip
_ANY = _ARYL + _ALKYL

_HATU = ("CN(C)C(On1nnc2cccnc21)=[N+](C)C~F[P-](F)(F)(F)(F)F", "CCN(C(C)C)C(C)C", "CN(C)C=O")
_EDC = ("CCN=C=NCCCN(C)C", "On1nnc2ccccc21", "CCN(CC)CC", "ClCCl")
_PALLADIUM = ("c1ccc(P(c2ccccc2)c2ccccc2)cc1", "CC(=O)[O-]~CC(=O)[O-]~[Pd+2]")
_CARBONATE = "O=C([O-])[O-]~[K+]~[K+]"


def joined(left: Block, link: str, right: Block, turned: str, neutral: str) -> str:
    """Return left–link–right, from an end of a chain of either block on; `neutral` if there is none.

    turned: the link as it is written from right to left; neutral: the molecule with {left} and {right}

    >>> joined(Block("c1ccccc1"), "C(=O)N", Block("CC", "CC*"), "NC(=O)", "O=C(N{right}){left}")
    'CCNC(=O)c1ccccc1'
    """
    for first, between, second in ((left, link, right), (right, turned, left)):
        if first.head:
            opened = re.sub(r"\([^()]*\)", "", first.head.partition("*")[0])
            inside = any(opened.count(number) % 2 for number in "12")  # a ring of the first block is still open
            return first.head.replace("*", between + _renumbered(second.tail, int(inside)))
    return neutral.format(left=left.tail, right=right.tail)


def _renumbered(block: str, by: int) -> str:
    return re.sub(r"\d", lambda number: str(int(number[0]) + by), block)


Reaction = Callable[[random.Random], tuple[list[str], str]]  # → precursors, product


def _amide(draw: random.Random) -> tuple[list[str], str]:
    acid, amine = draw.choice(_ANY), draw.choice(_ANY)
    product = joined(acid, "C(=O)N", amine, "NC(=O)", "O=C(N{right}){left}")
    if draw.random() < 0.3:
        return [acid.on("C(=O)Cl"), amine.on("N"), "CCN(CC)CC", "ClCCl"], product
    return [acid.on("C(=O)O"), amine.on("N"), *draw.choice((_HATU, _EDC))], product


def _sulfonamide(draw: random.Random) -> tuple[list[str], str]:
    acid, amine = draw.choice(_ARYL), draw.choice(_ANY)
    product = joined(acid, "S(=O)(=O)N", amine, "NS(=O)(=O)", "O=S(=O)(N{right}){left}")
    return [acid.on("S(=O)(=O)Cl"), amine.on("N"), draw.choice(("c1ccncc1", "CCN(CC)CC")), "ClCCl"], product


def _suzuki(draw: random.Random) -> tuple[list[str], str]:
    one, other = draw.choice(_ARYL), draw.choice([block for block in _ARYL if block.head])
    solvents = draw.choice((("C1COCCO1", "O"), ("COCCOC", "O"), ("Cc1ccccc1", "CCO", "O")))
    product = joined(other, "-", one, "-", "")
    return [one.on("Br"), other.on("B(O)O"), *_PALLADIUM, _CARBONATE, *solvents], product


def _reductive_amination(draw: random.Random) -> tuple[list[str], str]:
    aldehyde, amine = draw.choice(_ARYL), draw.choice(_ANY)
    borohydride = draw.choice(
        (("CC(=O)O[BH-](OC(C)=O)OC(C)=O~[Na+]", "ClCCCl"), ("[BH3-]C#N~[Na+]", "CO"), ("[BH4-]~[Na+]", "CO"))
    )
    product = joined(aldehyde, "CN", amine, "NC", "C(N{right}){left}")
    return [aldehyde.on("C=O"), amine.on("N"), *borohydride], product


def _ether(draw: random.Random) -> tuple[list[str], str]:
    phenol, bromide = draw.choice(_ARYL[:7] + _ARYL[14:]), draw.choice(_ARYL)
    product = joined(phenol, "OC", bromide, "CO", "C(O{left}){right}")
    return [phenol.on("O"), bromide.on("CBr"), _CARBONATE, draw.choice(("CN(C)C=O", "CC(C)=O", "CC#N"))], product


def _esterification(draw: random.Random) -> tuple[list[str], str]:
    acid = draw.choice(_ANY)
    return [acid.on("C(=O)O"), "CO", draw.choice(("O=S(=O)(O)O", "O=S(Cl)Cl"))], "COC(=O)" + acid.tail


def _hydrolysis(draw: random.Random) -> tuple[list[str], str]:
    acid, base = draw.choice(_ANY), draw.choice(("[Li+]~[OH-]", "[Na+]~[OH-]", "[K+]~[OH-]"))
    return ["COC(=O)" + acid.tail, base, *draw.choice((("C1CCOC1", "O"), ("CO", "O")))], acid.on("C(=O)O")


def _deprotection(draw: random.Random) -> tuple[list[str], str]:
    amine = draw.choice(_ANY)
    return ["CC(C)(C)OC(=O)N" + amine.tail, *draw.choice((("O=C(O)C(F)(F)F", "ClCCl"), ("Cl", "C1COCCO1")))], amine.on(
        "N"
    )


def _protection(draw: random.Random) -> tuple[list[str], str]:
    amine = draw.choice(_ANY)
    anhydride = "CC(C)(C)OC(=O)OC(=O)OC(C)(C)C"
    return [amine.on("N"), anhydride, "CCN(CC)CC", draw.choice(("ClCCl", "C1CCOC1"))], "CC(C)(C)OC(=O)N" + amine.tail


def _substitution(draw: random.Random) -> tuple[list[str], str]:
    amine = draw.choice(_ALKYL)
    neutral = f"O=[N+]([O-])c1ccc(N{_renumbered(amine.tail, 1)})cc1"
    product = joined(Block("c1ccc([N+](=O)[O-])cc1"), "N", amine, "N", neutral)
    solvent = draw.choice(("CS(C)=O", "CN(C)C=O", "CC#N"))
    return ["O=[N+]([O-])c1ccc(F)cc1", amine.on("N"), _CARBONATE, solvent], product


def _nitro_reduction(draw: random.Random) -> tuple[list[str], str]:
    ring = draw.choice(_ARYL)
    reagents = draw.choice((("[H][H]", "[Pd]", "CO"), ("[Fe]", "[Cl-]~[NH4+]", "CCO", "O"), ("[H][H]", "[Pd]", "CCO")))
    return [ring.on("[N+](=O)[O-]"), *reagents], ring.on("N")


def _carbonyl_reduction(draw: random.Random) -> tuple[list[str], str]:
    ring = draw.choice(_ARYL)
    return [ring.on("C=O"), "[BH4-]~[Na+]", draw.choice(("CO", "CCO", "C1CCOC1"))], ring.on("CO")


REACTIONS: tuple[Reaction, ...] = (
    _amide, _amide, _sulfonamide, _suzuki, _suzuki, _reductive_amination, _ether, _esterification, _hydrolysis,
    _deprotection, _protection, _substitution, _nitro_reduction, _carbonyl_reduction,
)  # fmt: skip


def reactions(count: int, seed: int, *, evaluation: bool = False) -> list[str]:
    """Return `count` different reaction strings; those for evaluation and those for calibration never coincide."""
    draw = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        precursors, product = draw.choice(REACTIONS)(draw)
        text = f"{'.'.join(sorted(precursors))}>>{product}"
        if crc32(text.encode()) % 2 == evaluation:
            found[text] = None
    return list(found)
