"""What words of launch files mean is said once: by the contract of an engine, else in the table of the others."""

import tomllib
from pathlib import Path

import pytest

import planner.audit
from planner.audit.words import FAMILIES, words_of_contract
from planner.engines.contracts import CONTRACTS
from planner.formats.settings import Setting

TABLE = tomllib.loads((Path(planner.audit.__file__).parent / "data" / "words.toml").read_text("utf-8"))
GROUPS = {
    group: {word for stated, words in fields.items() if stated != "said.ignored" for word in words}
    for group, fields in TABLE["words"].items()
}


@pytest.mark.parametrize(
    "entry", TABLE["families"], ids=lambda entry: f"{entry['name']} {entry.get('marks')}"
)
def test_no_word_of_a_contract_stands_in_the_table_too(entry):
    of_contracts = {
        word for name in entry.get("contracts", ()) for word in words_of_contract(CONTRACTS[name])
    }
    of_table = set().union(*(GROUPS[group] for group in entry["words"]))
    assert sorted(of_contracts & of_table) == []


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.engine])
def test_every_spelling_of_an_engine_is_read_by_its_family(family):
    contract = CONTRACTS[family.engine]
    stated = {name: word.states for name, word in contract.spellings.items() if word.states}
    read = {name: family.words.get(".".join(Setting(name=name, value=1, line=1).path)) for name in stated}
    assert read == stated


def test_a_word_states_a_field_of_its_setting():
    """Or what decides one together with others."""
    for contract in CONTRACTS.values():
        for setting in contract.settings:
            for word in setting.words:
                assert word.states in {"", *setting.fields} or word.states.startswith("said.")


def test_every_group_of_the_table_is_used():
    used = {group for entry in TABLE["families"] for group in entry["words"]}
    assert used == set(GROUPS)
