"""A switch has one record: values that set fields of a profile, words of tables, and nothing in two places."""

from dataclasses import fields

import pytest

from costmodel.stack import StackMemory, StackTiming, stack, stacks
from costmodel.switches.profile import switches_of, value_in, with_switches
from costmodel.switches.switch import MASTER_BYTES, EngineSwitch, switches
from topology.base.errors import InputError

FIELDS = {field.name for group in (StackTiming, StackMemory) for field in fields(group)}
PRICED = [
    (name, value)
    for name, switch in switches().items()
    for value, record in switch.values.items()
    if record.is_priced
]


@pytest.mark.parametrize("switch", switches().values(), ids=list(switches()))
def test_a_switch_sets_fields_that_there_are(switch: EngineSwitch) -> None:
    """Of a profile, or it stands in a layout or a job; and it says where its values come from."""
    if switch.home:
        assert switch.home.split(".")[0] in ("layout", "job")
        assert not switch.values
        return
    assert switch.what
    assert switch.source
    assert switch.columns
    for value in switch.values.values():
        assert {*value.sets, *value.at_least, *value.at_most} <= FIELDS | {MASTER_BYTES}


def test_no_cell_means_two_values_of_one_switch() -> None:
    """Words of a table are read as one value, and a value by its own name too."""
    for switch in switches().values():
        cells = [cell for name, value in switch.values.items() for cell in {name, *value.cells}]
        assert sorted(cells) == sorted(set(cells)), switch.name
        for name, value in switch.values.items():
            assert {switch.of_cell(cell.upper()) for cell in (name, *value.cells)} == {name}


@pytest.mark.parametrize(("name", "value"), PRICED)
@pytest.mark.parametrize("profile", ["megatron-core", "torchtitan"])
def test_a_value_that_is_set_is_read_back(profile: str, name: str, value: str) -> None:
    """From the profile: the same value, or one that makes it the same profile; others stay."""
    changed = with_switches(stack(profile), {name: value})
    assert with_switches(changed, {name: value_in(changed, switches()[name])}) == changed
    others = {each: now for each, now in switches_of(changed).items() if each != name}
    before = switches_of(stack(profile))
    moved = {each for each, now in others.items() if now != before[each]}
    shared = {each for each in others if _sets(each) & _sets(name)} | {"master_dtype", "moment_dtype"}
    assert moved <= shared


def _sets(name: str) -> set[str]:
    """Fields that any value of a switch sets."""
    return {field for value in switches()[name].values.values() for field in value.sets}


def test_every_profile_is_described_by_its_switches() -> None:
    """A switch that a profile states is the one that is read of it, or one whose fields are the same."""
    for name, profile in stacks().items():
        assert switches_of(profile)["attention_kernel"] != "", name
    assert switches_of(stack("pytorch-fsdp1"))["attention_kernel"] == "triton"
    assert switches_of(stack("megatron-deepspeed"))["attention_kernel"] == "unfused"
    assert switches_of(stack("megatron-core-bf16-state")) | {} == switches_of(stack("megatron-core")) | {
        "gradient_dtype": "bf16",
        "master_dtype": "remainder",
        "moment_dtype": "bf16",
    }


@pytest.mark.parametrize(
    ("values", "optimizer_bytes"),
    [
        ({"moment_dtype": "bf16"}, 8.0),
        ({"master_dtype": "none"}, 8.0),
        ({"master_dtype": "none", "moment_dtype": "bf16"}, 4.0),
        ({"master_dtype": "remainder", "moment_dtype": "fp8"}, 4.0),
    ],
)
def test_states_of_a_parameter_add_up(values: dict[str, str], optimizer_bytes: float) -> None:
    """Master weights and moments, in bytes per parameter."""
    assert with_switches(stack("megatron-core"), values).memory.optimizer_bytes == optimizer_bytes


@pytest.mark.parametrize(("master", "kept"), [("fp32", 4.0), ("none", 2.0), ("remainder", 4.0)])
def test_sharded_weights_are_kept_where_nothing_wider_is(master: str, kept: float) -> None:
    """FSDP's shards are the weights: sixteen bits of them stay where no master has all 32."""
    memory = with_switches(stack("torchtitan"), {"master_dtype": master}).memory
    assert memory.optimizer_bytes - memory.moment_bytes == kept


def test_a_number_behind_a_value_and_a_list_of_modules_are_values_too() -> None:
    """As Megatron-Core's scopes and torchtitan's chunks are written."""
    assert with_switches(stack("torchtitan"), {"loss": "chunked:16"}).memory.loss_chunks == 16
    assert with_switches(stack("torchtitan"), {"loss": "chunked"}).memory.loss_chunks == 8
    graphed = with_switches(stack("megatron-core"), {"cuda_graph_scope": "attn, moe_router"})
    assert graphed.timing.graphed_modules == ("attn", "moe_router")
    assert switches_of(graphed)["cuda_graph_scope"] == "attn;moe_router"


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"attention": "fa2"}, "there is no switch 'attention'"),
        ({"attention_kernel": "fa5"}, "attention_kernel = 'fa5' is no value of this switch"),
        ({"loss": "whole:3"}, "loss = 'whole:3' is no value of this switch"),
        ({"loss": "chunked:0"}, "loss = 'chunked:0' is no value of this switch"),
        ({"cuda_graph_scope": "attn;loss"}, "cuda_graph_scope = 'attn;loss' is no value of this switch"),
        ({"routing": "forced"}, "routing = forced is not priced"),
    ],
)
def test_what_is_no_switch_or_value_is_refused_with_those_that_there_are(
    values: dict[str, str], what: str
) -> None:
    """In three lines."""
    with pytest.raises(InputError) as error:
        with_switches(stack("megatron-core"), values)
    assert error.value.what == what
    assert error.value.cause
    assert error.value.fix
