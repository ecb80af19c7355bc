"""What every kind of attention, feed-forward and recurrence says of itself, so that nobody asks which it is.

A kind is one record: its sizes, parameters and cache are its own numbers; what is here is what readers above
ask of all kinds, with what holds where a record says nothing else. Operations are in `costmodel.ops`, a
builder for each kind, by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A size of a model that the ranks of an axis divide without a rest.

    Attributes:
        law: The rule that says so.
        axis: The axis.
        field: The size, by the name that people know.
        size: How large it is.
    """

    law: str
    axis: str
    field: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWords:
    """How an engine is told a kind.

    Attributes:
        flag: The word that asks for it; "" where the engine takes it unasked.
        sizes: Words of its sizes: the field of a `ModelSpec`, and what the engine takes where nobody says; a
            word without that is written for sizes above 0 alone.
    """

    flag: str = ""
    sizes: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)


UNASKED = EngineWords()
"""An engine builds it without a word, or with words of its own contract."""
ENGINES_WITH_A_MODEL = ("megatron", "torchtitan", "meshplan")
"""Engines that build the model themselves, Megatron-Bridge by Megatron's; the others are handed a module."""


class Mechanism:
    """Facts of a kind.

    Attributes:
        named: What people call it.
        mark: Field of a `ModelSpec` that says that a model is of this kind; "" of the kind of all others.
        counts: Whole numbers among the fields of a `ModelSpec` that are its own; 0 for other kinds.
        parts: Fields of a `ModelSpec` that hold a record of its own sizes; None for other kinds.
        sizes: Fields that a model of this kind has above 0.
        context_law: The rule that keeps its sequences whole, where there is one.
        modules: Parts that Megatron repeats (``recompute_modules``) and that it has beside those of all.
        is_measured: Whether tables have its kernels; of others only the roofline is known.
        engines: Its words, by engine that builds it; an engine that is not named does not have it.
        more_kernels: Kernels of a served layer besides products, the core and what every layer has.
    """

    __slots__ = ()

    named: ClassVar[str]
    mark: ClassVar[str] = ""
    counts: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()
    sizes: ClassVar[tuple[str, ...]] = ()
    context_law: ClassVar[str] = ""
    modules: ClassVar[frozenset[str]] = frozenset()
    is_measured: ClassVar[bool] = True
    engines: ClassVar[Mapping[str, EngineWords]] = dict.fromkeys(ENGINES_WITH_A_MODEL, UNASKED)

    @classmethod
    def misfit(cls, model: Any) -> tuple[str, str] | None:
        """What of a model's sizes no model of this kind has, and what helps."""
        del model
        return None

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Sizes that ranks divide without a rest."""
        return ()

    @property
    def whole_sequence(self) -> str:
        """Why ranks do not cut its sequences; "" where they do. Said by `context_law`."""
        return ""

    @property
    def context_cuts(self) -> tuple[Cut, ...]:
        """Sizes that tp·cp ranks divide where an engine exchanges heads for tokens; () where none does."""
        return ()

    @property
    def unserved(self) -> str:
        """Why nobody knows what serving it costs; "" where that is known."""
        return ""


class AttentionRecord(Mechanism):
    """Facts of a kind of attention.

    Attributes:
        title: What a layer with it is called beside others.
        pattern: What its layers are called in `LayerKind`, where not after their windows.
        letters: Of a `layer_pattern`, where its layers differ in their reach: mixer and feed-forward.
        predicting_reach: Reach of the layer in a module that predicts a further token.
        adapts: Whether adapters of its served projections are priced.
        joins_split_caches: Whether servers hand a cache whose tokens ranks split to another pool.
        whole_in_transformers: What of it transformers' own plan leaves whole on every tensor rank.
    """

    __slots__ = ()

    title: ClassVar[str] = "attention"
    pattern: ClassVar[Literal["", "mla"]] = ""
    letters: ClassVar[Mapping[str, tuple[Any, Any]]] = {}
    predicting_reach: ClassVar[Any] = None
    adapts: ClassVar[bool] = True
    joins_split_caches: ClassVar[bool] = False
    whole_in_transformers: ClassVar[str] = ""

    @classmethod
    def describes(cls, model: Any) -> bool:
        """Whether a model has it: its mark is there."""
        return not cls.mark or bool(getattr(model, cls.mark))

    @classmethod
    def title_of(cls, mixer: str) -> str:
        """What a layer with it is called beside others, by its reach where it has several."""
        return f"{mixer} attention" if mixer in cls.reaches() else cls.title

    @classmethod
    def reaches(cls) -> frozenset[str]:
        """How far its layers see, where they differ in it."""
        return frozenset(mixer for mixer, _ in cls.letters.values())

    def further_parameters(self, mixer: str) -> int:
        """Parameters that layers of this reach have beside those of all its layers."""
        del mixer
        return 0
