"""What an engine cannot run, and the environment that it needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.kinds import layer_kinds
from costmodel.models.spec import ModelSpec, unbuilt
from costmodel.stack import stacks
from costmodel.switches.profile import switches_of
from costmodel.switches.switch import sets_of
from costmodel.updates.adapters import AdapterKind
from planner.engines.fields import Facts, layout_facts, model_facts, stack_facts
from planner.engines.setting import EngineSetting, Given
from planner.law import Ground, Law, PlanLaw
from planner.plan import Problem
from topology.base.arrays import Mask
from topology.base.units import format_bytes
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu


def limit(
    *,
    name: str,
    reads: tuple[str, ...],
    broken: Callable[[Problem, LayoutTable], Mask | bool],
    says: Callable[[Problem, ParallelLayout], tuple[str, str]],
    ground: Ground | Callable[[Problem, ParallelLayout], Ground] = "engine",
    others: tuple[str, ...] = (),
    others_why: str = "",
) -> PlanLaw:
    """What an engine cannot run although the profile that prices it could: a law under the engine's name.

    The ground is ``unpriced`` where it runs what nothing here prices. It holds whatever is pinned: at its
    smallest value a field may break it too.
    """
    return Law(
        name=name,
        reads=reads,
        broken=broken,
        says=says,
        ground=ground,
        lenient_at_one=False,
        others=others,
        others_why=others_why,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable that an engine needs, why, and of which plans and GPUs."""

    name: str
    value: str
    why: str
    needed: Callable[[Facts, Gpu], bool] = lambda _facts, _gpu: True


MODULE_ENGINES = ("deepspeed", "accelerate")
"""Engines that are handed a module instead of sizes."""
TRAINED = "which train the model's own module"
MOST_FIELDS = 3
"""Fields of a model that a refusal names; the others are counted."""
LONGEST = 60


def _brief(value: object) -> str:
    """A value of a field in few letters: sizes by their names, never the class that holds them."""
    if dataclasses.is_dataclass(value):
        text = " ".join(f"{each.name} {getattr(value, each.name)}" for each in dataclasses.fields(value))
    else:
        text = str(value)
    return "none" if value in ("", (), None) else text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def difference_words(name: str, value: object, other: object) -> str:
    """What a field is and what it would be; of sizes that are held together those alone that differ.

    >>> from costmodel.models.rotary import RopeScaling
    >>> yarn = RopeScaling(kind="yarn", factor=32.0, original_max_position_embeddings=4096)
    >>> difference_words("scaling", yarn, dataclasses.replace(yarn, factor=40.0))
    'scaling.factor = 32.0, there 40.0'
    """
    if dataclasses.is_dataclass(value) and type(value) is type(other):
        parts = [
            difference_words(f"{name}.{each.name}", getattr(value, each.name), getattr(other, each.name))
            for each in dataclasses.fields(value)
            if getattr(value, each.name) != getattr(other, each.name)
        ]
        return "; ".join(parts)
    return f"{name} = {_brief(value)}, there {_brief(other)}"


def differing_fields(settings: Sequence[EngineSetting], model: ModelSpec) -> tuple[str, ...]:
    """Fields of a model that settings read back otherwise, each with what it is and what it would be."""
    facts = {**layout_facts(ParallelLayout()), **model_facts(model)}
    mine = [setting for setting in settings if any(name.startswith("model.") for name in setting.fields)]
    words = {name: value for setting in mine for name, value in setting.write(facts).items()}
    given = Given(words, {word.name: word for setting in settings for word in setting.words})
    read = {name: value for setting in mine for name, value in setting.read(given).items()}
    return tuple(
        difference_words(name, value, read[name])
        for name, value in facts.items()
        if name.startswith("model.") and read.get(name, value) != value
    )


def layers_limit(title: str, engine: str) -> PlanLaw:
    """The limit of an engine that is told one number of layers, or builds only some kinds of them."""

    def unlike(model: ModelSpec) -> bool:
        return bool(model.layer_pattern or model.tower)

    def says(s: Problem, _: ParallelLayout) -> tuple[str, str]:
        has = layer_kinds(s.model) if unlike(s.model) else unbuilt(s.model, engine)
        why = f"{title} is not told here which layer is which" if unlike(s.model) else f"{title} builds none"
        return f"{s.model.name} has {has}: {why}", "use another model"

    return limit(
        name="layer-kinds",
        reads=(),
        broken=lambda s, _: unlike(s.model) or bool(unbuilt(s.model, engine)),
        says=says,
        others=MODULE_ENGINES,
        others_why=TRAINED,
        ground=lambda s, _: "unpriced" if unlike(s.model) else "engine",
    )


def model_limit(title: str, settings: Sequence[EngineSetting]) -> PlanLaw:
    """The limit of an engine that cannot be told every model."""

    def says(s: Problem, _: ParallelLayout) -> tuple[str, str]:
        every = differing_fields(settings, s.model)
        more = f"; and {len(every) - MOST_FIELDS} more" if len(every) > MOST_FIELDS else ""
        differs = "; ".join(every[:MOST_FIELDS]) + more
        return f"{title} would compute another model than {s.model.name}: {differs}", "use another model"

    return limit(
        name="model",
        reads=(),
        broken=lambda s, _: bool(differing_fields(settings, s.model)),
        says=says,
        others=MODULE_ENGINES,
        others_why=TRAINED,
    )


def switch_limit(title: str, settings: Sequence[EngineSetting]) -> PlanLaw:
    """The limit of an engine that has no word here for a switch which is not as its profile has it."""
    stated = {field for setting in settings for field in setting.fields} | {"stack.recomputed_modules"}
    stated |= {"stack.moment_bytes"} if "stack.optimizer_bytes" in stated else set()
    of_switches = [setting for setting in settings if setting.switch]
    why = {setting.switch: setting.untold for setting in of_switches}
    words = {word.name: word for setting in settings for word in setting.words}

    def worded(s: Problem, changed: set[str]) -> set[str]:
        """Fields that words say: of a setting of one switch, only values that it reads back."""
        facts = {**layout_facts(ParallelLayout()), **model_facts(s.model), **stack_facts(s.stack)}
        fields = set(stated)
        for setting in of_switches:
            if changed.isdisjoint(setting.fields):
                continue
            read = setting.read(Given(setting.write(facts), words))
            fields -= {name for name in setting.fields if read.get(name) != facts[name]}
        return fields

    def unsaid(s: Problem) -> tuple[tuple[str, str], ...]:
        usual = stacks().get(s.stack.name)
        if usual is None or (usual.timing, usual.memory) == (s.stack.timing, s.stack.memory):
            return ()
        before = stack_facts(usual)
        changed = {name for name, now in stack_facts(s.stack).items() if now != before[name]}
        changed -= worded(s, changed)
        values = switches_of(s.stack)
        return tuple(
            (name, values[name]) for name in values if changed & {f"stack.{field}" for field in sets_of(name)}
        )

    def says(s: Problem, _: ParallelLayout) -> tuple[str, str]:
        lacking = unsaid(s)
        text = ", ".join(f"{name} {value}" for name, value in lacking)
        reasons = [why[name][value] for name, value in lacking if value in why.get(name, {})]
        return (
            "; ".join((f"{title} is not told here that {text}", *reasons)),
            "leave the switch out, or plan with --for any",
        )

    return limit(
        name="switches",
        reads=(),
        broken=lambda s, _: bool(unsaid(s)),
        says=says,
        ground="unpriced",
    )


def whole_width(model: ModelSpec) -> int:
    """Largest number that divides the sides of products that no rank cuts."""
    return math.gcd(
        model.hidden_size, model.moe_intermediate_size, model.moe_latent_size, *model.attention.whole_widths
    )


def split_width(model: ModelSpec) -> int:
    """Largest number that divides the sides of products that tensor parallelism cuts."""
    widths = [*model.attention.split_widths, model.shared_expert_size]
    widths += [model.intermediate_size] if not model.is_moe or model.num_dense_layers else []
    return math.gcd(*widths)


def columns_limit(multiples: Mapping[str, int]) -> PlanLaw:
    """The limit of an engine whose products in eight bits have sides of such multiples, by precision."""

    def broken(s: Problem, t: LayoutTable) -> Mask | bool:
        multiple = multiples.get(s.job.precision)
        if multiple is None:
            return False
        split = np.asarray(split_width(s.model) % (multiple * t.tp) != 0, dtype=bool)
        return split | (whole_width(s.model) % multiple != 0)

    def says(s: Problem, x: ParallelLayout) -> tuple[str, str]:
        multiple, split, whole = multiples[s.job.precision], split_width(s.model), whole_width(s.model)
        equation = f"columns {split} % ({multiple}·tp {x.tp}) = {split % (multiple * x.tp)}"
        if whole % multiple:
            equation = f"columns {whole} % {multiple} = {whole % multiple}"
        return f"{equation}, must be 0 for {s.job.precision}", "use a smaller tp, or --precision bf16"

    return limit(name="columns-of-eight-bits", reads=("tp",), broken=broken, says=says)


SCALES_BLOCKS_FROM = (10, 0)
"""Compute capability from which torch's kernels take mxfp8: `torch.nn.functional.scaled_mm`, tcgen05."""


def scales_blocks(gpu: Gpu) -> bool:
    """Whether torch's products take a scale for every block of numbers on a GPU."""
    generation = generation_of(gpu)
    return generation.mxfp8 and generation.capability >= SCALES_BLOCKS_FROM


def block_scales_limit(who: str) -> PlanLaw:
    """The limit of an engine whose products of mxfp8 are torch's."""
    return limit(
        name="block-scales",
        reads=(),
        broken=lambda s, _: s.job.precision == "mxfp8" and not scales_blocks(s.cluster.gpu),
        says=lambda s, _: (
            f"mxfp8 on {s.cluster.gpu.name} ({s.cluster.gpu.architecture}): {who} want sm_100 or later",
            "use --precision fp8",
        ),
    )


def adapter_limit(title: str, kinds: Sequence[AdapterKind] = ()) -> PlanLaw:
    """The limit of an engine that trains whole models alone, or adapters of these kinds."""
    takes = f"it trains {', '.join(kinds)}" if kinds else "it trains whole models alone"
    fix = f"use --adapter {kinds[0]}:r=16" if kinds else "leave --adapter out"

    def says(s: Problem, _: ParallelLayout) -> tuple[str, str]:
        written = "" if s.job.adapter is None else s.job.adapter.words
        return f"adapter {written}: {title} cannot be told it, {takes}", fix

    return limit(
        name="adapter",
        reads=(),
        broken=lambda s, _: s.job.adapter is not None and s.job.adapter.kind not in kinds,
        says=says,
        others=MODULE_ENGINES[::-1],
        others_why="whose program adds it",
    )


def offload_limit(title: str, words: Sequence[str] = ()) -> PlanLaw:
    """The limit of an engine that keeps everything on the GPU, or is told to offload this alone."""
    takes = f"offload {', '.join(words)} alone" if words else "keep all state on the GPU"
    fix = f"use --offload {words[0]}" if words else "leave --offload out"

    def says(s: Problem, _: ParallelLayout) -> tuple[str, str]:
        written = "" if s.job.offload is None else s.job.offload.words
        return f"offload {written}: plans written for {title} {takes}", fix

    return limit(
        name="offload",
        reads=(),
        broken=lambda s, _: s.job.offload is not None and s.job.offload.words not in words,
        says=says,
        others=("torchtitan", "accelerate", "megatron"),
    )


SENT = ("gradient_compression", "local_steps", "bucket_bytes")
"""Fields of a job that say how replicas send gradients."""


def compression_limit(title: str, fields: Sequence[str] = ()) -> PlanLaw:
    """The limit of an engine that is not told here how to send gradients, but for `fields`."""
    unset = [name for name in SENT if name not in fields]

    def says(s: Problem) -> tuple[str, str]:
        name = next(name for name in unset if getattr(s.job, name) is not None)
        value = getattr(s.job, name)
        text = format_bytes(value) if isinstance(value, float) else value
        return f"{name} = {text}: {title} is not told it", f"leave job.{name} out"

    return limit(
        name="compression",
        reads=(),
        broken=lambda s, _: any(getattr(s.job, name) is not None for name in unset),
        says=lambda s, _: says(s),
        ground="unpriced",
    )


def further_limit(title: str) -> PlanLaw:
    """The limit of an engine that trains no modules which predict further tokens."""
    return limit(
        name="further-tokens",
        reads=(),
        broken=lambda s, _: s.job.mtp_layers > 0,
        says=lambda s, _: (
            f"mtp_layers = {s.job.mtp_layers}: {title} trains no modules that predict further tokens",
            "leave job.mtp_layers out, or use --for megatron",
        ),
    )


def optimizer_limit(title: str, names: Sequence[str] = ("adamw",)) -> PlanLaw:
    """The limit of an engine that has these optimizers, under the names of the cost model."""

    def says(s: Problem, _: ParallelLayout) -> tuple[str, str]:
        return (
            f"optimizer = {s.job.optimizer}: {title} is told {', '.join(names)}",
            f"use --set job.optimizer={names[0]}",
        )

    return limit(name="optimizer", reads=(), broken=lambda s, _: s.job.optimizer not in names, says=says)
