"""What an installed Meshplan stands on, as CycloneDX JSON: `python tools/write_sbom.py app > sbom.cdx.json`.

Read from the metadata of the environment that it runs in; names after the command are extras. The same
environment gives the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement

ROOT = "meshplan"


def bill(extras: Sequence[str]) -> dict[str, Any]:
    """The document, of Meshplan and all that it requires here, directly or not.

    >>> bill([])["metadata"]["component"]["name"]
    'meshplan'
    """
    needs: dict[str, tuple[str, ...]] = {}
    waiting = [(ROOT, tuple(extras))]
    while waiting:
        name, wanted = waiting.pop()
        required = tuple(_required(distribution(name), wanted))
        needs[name] = tuple(sorted({*needs.get(name, ()), *(other for other, _ in required)}))
        waiting += [(other, more) for other, more in required if other not in needs or more]
    parts = {name: _component(distribution(name)) for name in sorted(needs)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**parts.pop(ROOT), "type": "application"}},
        "components": list(parts.values()),
        "dependencies": [
            {"ref": _reference(name), "dependsOn": [_reference(other) for other in needs[name]]}
            for name in sorted(needs)
        ],
    }


def _required(of: Distribution, extras: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Installed distributions that one requires here, and with which extras."""
    found = []
    for line in of.requires or ():
        asked = Requirement(line)
        if asked.marker and not any(asked.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        try:
            distribution(asked.name)
        except PackageNotFoundError:
            sys.stderr.write(f"{of.name} requires {line}, which is not installed\n")
            continue
        found.append((_normal(asked.name), tuple(sorted(asked.extras))))
    return found


def _component(of: Distribution) -> dict[str, Any]:
    """One entry of the bill."""
    said = of.metadata.get("License-Expression") or of.metadata.get("License", "")
    licence = {"licenses": [{"license": {"name": said}}]} if said and "\n" not in said else {}
    place = _reference(of.name)
    known = {"bom-ref": place, "name": of.name, "version": of.version, "purl": place}
    return {"type": "library", **known, **licence}


def _reference(name: str) -> str:
    """The package URL, by which an entry is known."""
    return f"pkg:pypi/{_normal(name)}@{distribution(name).version}"


def _normal(name: str) -> str:
    """A name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    print(json.dumps(bill(sys.argv[1:]), indent=1))
