"""Chance with a name: each thing that is drawn for has a stream of its own, so that no other draw moves it."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The generator of that name under that seed; the same on every machine, independent of all others.

    What node 7 draws does not depend on how many nodes there are or who drew before.
    """
    text = "\0".join([str(seed), *map(str, names)])
    digest = hashlib.blake2s(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
