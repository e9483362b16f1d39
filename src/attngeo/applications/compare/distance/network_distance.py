"""`NetworkDistance`: stub."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkDistance:
    """How far apart two networks are."""

    value: float

    def sentence(self) -> str:
        return ""
