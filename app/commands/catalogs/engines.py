"""`plan engines [NAME]`: engines and dated presets that price them, or the switches of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.flags.completion import preset_completion
from app.flags.shared import AsJson, OutputFile, OutputFormat

if TYPE_CHECKING:
    from app.reports.answer import Answer, Table
    from costmodel.stack import SoftwareStack
    from costmodel.switches.switch import EngineSwitch
    from planner.engines.contract import Contract


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="One engine, or one preset.",
            autocompletion=preset_completion,
        ),
    ] = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """List engines with their presets, or the switches of one and how the engine says them."""
    from app.reports.answer import emit
    from costmodel.stack import stacks
    from planner.engines.contracts import CONTRACTS, engine_of_stack, engine_or_preset

    if name is None:
        answer = _list()
    else:
        known = engine_or_preset(name)
        preset = CONTRACTS[known].stacks[0] if known in CONTRACTS else known
        engine = known if known in CONTRACTS else engine_of_stack(preset)
        answer = _describe(stacks()[preset], CONTRACTS.get(engine))
    return emit(answer, wanted=output_format, as_json=as_json, output=output)


def _list() -> Answer:
    """Engines with what prices them, and presets by date."""
    from app.reports.answer import Answer, Table, json_text
    from costmodel.stack import stacks
    from planner.engines.contracts import CONTRACTS, engine_of_stack

    engines: tuple[dict[str, Any], ...] = tuple(
        {
            "name": contract.engine,
            "title": contract.title,
            "package": contract.package,
            "releases": list(contract.releases),
            "presets": list(contract.stacks),
        }
        for contract in CONTRACTS.values()
    )
    presets: tuple[dict[str, Any], ...] = tuple(
        {
            "name": stack.name,
            "engine": engine_of_stack(stack.name),
            "description": stack.description,
            "measured": stack.origin.calibrated,
            "source": stack.origin.source,
            "as_of": stack.origin.as_of,
        }
        for stack in stacks().values()
    )
    tables = (
        Table(
            title="Engines",
            columns=("--for", "engine", "releases", "presets"),
            rows=tuple(
                (e["name"], e["title"], _releases(e["package"], e["releases"]), ", ".join(e["presets"]))
                for e in engines
            ),
            align="llll",
            wraps=(3,),
        ),
        Table(
            title="Presets",
            columns=("--stack", "as of", "measured", "what it is"),
            rows=tuple(
                (p["name"], p["as_of"], "yes" if p["measured"] else "no", p["description"]) for p in presets
            ),
            align="llll",
            wraps=(3,),
            note="plan engines NAME lists the switches of one; --set switch.NAME=VALUE changes one",
        ),
    )
    return Answer(
        headline=f"{len(engines)} engines, {len(presets)} presets",
        sections=tables,
        document=lambda: json_text({"engines": engines, "presets": presets}),
        records=presets,
    )


def _releases(package: str, releases: Any) -> str:
    """A range of versions of a package."""
    first, last = releases
    return f"{package} {first}" if first == last else f"{package} {first} – {last}"


def _describe(stack: SoftwareStack, contract: Contract | None) -> Answer:
    """The switches of one preset."""
    from app.reports.answer import Answer, Facts, json_text
    from costmodel.switches.profile import switches_of
    from costmodel.switches.switch import switches

    values = switches_of(stack)
    records = tuple(
        {
            "switch": name,
            "title": switch.title,
            "value": values.get(name, ""),
            "values": _values(switch),
            "set_by": switch.home or f"switch.{name}",
            "changes": list(switch.changes),
            "said_by": list(_words(switch, contract)),
            "what": switch.what,
            "source": switch.source,
            "as_of": switch.as_of,
        }
        for name, switch in switches().items()
    )
    facts = Facts(
        title="Preset",
        pairs=(
            ("name", stack.name),
            ("is", stack.description),
            ("engine", contract.title if contract else "none that plans are written for"),
            ("measured", "yes" if stack.origin.calibrated else "no run determined its constants"),
            ("source", f"{stack.origin.source} ({stack.origin.as_of})"),
        ),
    )
    return Answer(
        headline=f"{stack.name}: {len(records)} switches",
        sections=(facts, _table(records, contract)),
        document=lambda: json_text({"preset": stack.name, "switches": records}),
        records=tuple({key: _flat(value) for key, value in record.items()} for record in records),
    )


def _table(records: tuple[dict[str, Any], ...], contract: Contract | None) -> Table:
    """One line for each switch."""
    from app.reports.answer import Table

    return Table(
        title="Switches",
        columns=("--set", "is", "may be", "moves", "said by"),
        rows=tuple(
            (
                record["set_by"],
                record["value"] or ("" if record["set_by"].startswith("switch.") else "as planned"),
                ", ".join(record["values"]),
                ", ".join(record["changes"]),
                ", ".join(record["said_by"]),
            )
            for record in records
        ),
        align="lllll",
        wraps=(2, 4),
        note=f"said by: words of {contract.title}; none where it has no word for it" if contract else "",
    )


def _values(switch: EngineSwitch) -> list[str]:
    """What a switch may be; what nothing prices is said to be so."""
    values = [
        f"{name}:N" if value.number else name if value.is_priced else f"{name} (not priced)"
        for name, value in switch.values.items()
    ]
    lists = [] if switch.modules is None else ["a list of " + " ".join(switch.modules.of)]
    return [*values, *lists]


def _words(switch: EngineSwitch, contract: Contract | None) -> tuple[str, ...]:
    """Words of an engine that state fields of this switch."""
    from costmodel.switches.switch import sets_of

    if contract is None:
        return ()
    stated = {switch.home} if switch.home else {f"stack.{name}" for name in sets_of(switch.name)}
    words = [word.name for each in contract.settings if stated & {*each.fields} for word in each.words]
    return tuple(dict.fromkeys(words))


def _flat(value: Any) -> Any:
    """A list as one cell."""
    return "; ".join(value) if isinstance(value, list) else value
