"""Warnings that torch gives for correct use."""

from __future__ import annotations

import logging


def quiet_known_warnings() -> None:
    """Silence warnings that torch gives for correct use, one by one."""
    import warnings

    for text in _HARMLESS:
        warnings.filterwarnings("ignore", message=text)
    # whole matrices are gathered over two axes, one after the other: no sum depends on the order
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


_HARMLESS: tuple[str, ...] = (
    "FSDP2-wrapped module .* returned a view tensor",  # nothing here writes into what a module returns
)
