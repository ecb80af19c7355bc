"""Bytes of live tensors by what they are for, and their peak, for fake or real tensors.

A dispatch mode sees every tensor that an operation makes and watches its storage until it is freed. Unlike
torch's own trackers it needs no module hooks, so pipelines with several microbatches in flight work.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from executor.torch_internals.fakes import (
    active_fake_mode,
    asks_device,
    has_distributed_tensor,
    local_tensor,
    storage_key,
    tensors_in,
)
from executor.torch_internals.operators import is_wait

Purpose = Literal["weights", "gradients", "optimizer", "activations"]
"""Weights that compute reads; master weights count as optimizer state, as in the cost model."""


@dataclass(slots=True)
class _Live:
    """One storage: its size, what it is for, and a reference whose death frees it."""

    size: int
    purpose: Purpose
    watch: Any


class PeakTracker(TorchDispatchMode):
    """Watch storages while active; new ones are `activations` until `mark` says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[int, _Live] = {}
        self._total = 0
        self.peak_bytes = 0
        self.peak_by_purpose: Mapping[str, int] = {}
        self._resizing: Any = None
        self._mode: Any = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to wrap each call so that nothing is compiled in it: nothing is, here."""
        return False

    def mark(self, tensors: Iterable[torch.Tensor], purpose: Purpose) -> None:
        """Say what these tensors are for, watching those that are not watched yet."""
        for tensor in tensors:
            self._watch(tensor)
            live = self._live.get(storage_key(tensor))
            if live is not None:
                live.purpose = purpose

    def forget_peak(self) -> None:
        """Start looking for a new peak."""
        self.peak_bytes = 0

    def _watch(self, tensor: torch.Tensor) -> None:
        """Begin to watch a tensor's storage."""
        storage = local_tensor(tensor).untyped_storage()
        key = storage_key(tensor)
        if key in self._live:
            return
        watch = weakref.ref(storage, functools.partial(self._free, key))
        self._live[key] = _Live(storage.nbytes(), "activations", watch)
        self._grow(storage.nbytes())

    def _free(self, key: int, _dead: object) -> None:
        """Forget a storage that is gone."""
        gone = self._live.pop(key, None)
        self._total -= gone.size if gone is not None else 0

    def _resize(self, storage: Any, size: int) -> None:
        """Follow a storage that FSDP empties and fills again."""
        live = self._live.get(storage._cdata)  # noqa: SLF001
        if live is not None:
            change, live.size = size - live.size, size
            self._grow(change)

    def _grow(self, change: int) -> None:
        """Count more (or fewer) bytes, remembering the peak."""
        self._total += change
        if self._total > self.peak_bytes:
            self.peak_bytes = self._total
            self._snapshot()

    def _snapshot(self) -> None:
        """Remember what is alive at the peak; cheap because peaks only rise near the end of warm-up."""
        purposes: Counter[str] = Counter()
        for live in self._live.values():
            purposes[live.purpose] += live.size
        self.peak_by_purpose = purposes

    def __enter__(self) -> Self:
        """Follow resizes, which no dispatch mode sees."""
        self._mode = active_fake_mode()
        self._resizing = torch.UntypedStorage.resize_
        plain = self._resizing

        def resize(storage: Any, size: int) -> Any:
            result = plain(storage, size)
            self._resize(storage, size)
            return result

        torch.UntypedStorage.resize_ = resize
        super().__enter__()
        return self

    def __exit__(self, *reason: object) -> None:
        """Stop watching."""
        torch.UntypedStorage.resize_ = self._resizing
        super().__exit__(*reason)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and watch what it returns."""
        if asks_device(function, args):
            return args[0].fake_device  # half of all calls, which autograd makes
        if has_distributed_tensor(types):
            return NotImplemented  # its local operations come next
        if is_wait(function):
            return args[0]  # a fake wait would count a copy
        result = function(*args, **(kwargs or {}))
        if active_fake_mode() is self._mode:  # not DTensor's own shape propagation
            for tensor in tensors_in(result):
                if tensor.device.type != "meta":
                    self._watch(tensor)
        return result
