"""The built-in tokenizer for plain text: its UTF-8 bytes, and one token between documents."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

END_OF_TEXT = 256
VOCABULARY = 257


def encode(text: str) -> npt.NDArray[np.uint16]:
    """Token ids of a text: its bytes, closed by an end-of-text token.

    >>> encode("é!").tolist()
    [195, 169, 33, 256]
    """
    raw = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)
    return np.append(raw, np.uint16(END_OF_TEXT))


def decode(tokens: npt.NDArray[np.integer]) -> str:
    """Text of token ids; what is not a byte is left out, broken characters are replaced.

    >>> decode(encode("é!"))
    'é!'
    """
    return bytes(int(token) for token in tokens if token < END_OF_TEXT).decode(errors="replace")
