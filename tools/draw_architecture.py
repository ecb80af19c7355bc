"""Draw the five packages, their wings and who imports whom: docs/images/architecture.svg.

Run `python tools/draw_architecture.py` after a wing or an arrow between packages came or went. The order of
the wings is that of the contracts in pyproject.toml, which `lint-imports` proves; arrows and third-party
packages are read from the imports, without those that a contract excepts by name.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"

COLUMN, GAP, MARGIN = 208, 30, 16  # width of a package, space between two, space around all
HEAD, FOOT, TOP = 40, 46, 150  # name of a package, its third-party packages, where packages begin
BOX, SPACE, PADDING = 26, 6, 9  # height of a wing, space between two, space beside its name
LETTER = 6.9  # width of a letter
ARC = 26  # rise of an arrow for each package it passes

STYLE = """
  text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2933; }
  .name { font-size: 15px; font-weight: bold; }
  .quiet, .note { font-size: 11px; fill: #52606d; }
  .note { font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 12px; }
  .page { fill: #ffffff; }
  .package { fill: #f3f6fa; stroke: #9fb3c8; }
  .wing { fill: #d9e8f8; stroke: #4a7fb5; }
  .file { fill: #ffffff; stroke: #9fb3c8; stroke-dasharray: 3 2; }
  .arrow { fill: none; stroke: #52606d; stroke-width: 1.4; }
  .tip { fill: #52606d; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb; }
    .quiet, .note { fill: #a6b4c3; }
    .page { fill: #0d1117; }
    .package { fill: #161d27; stroke: #486581; }
    .wing { fill: #1d3a57; stroke: #5b9bd5; }
    .file { fill: #0d1117; stroke: #627d98; }
    .arrow { stroke: #a6b4c3; }
    .tip { fill: #a6b4c3; }
  }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package as it is drawn: names row by row, the upper row imports the lower ones."""

    name: str
    rows: tuple[tuple[str, ...], ...]
    imports: frozenset[str]
    only_here: tuple[str, ...]


def packages(root: Path = ROOT) -> list[Package]:
    """The packages, ground first, from the contracts and the imports."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    linted = project["tool"]["importlinter"]
    names = list(linted["root_packages"])
    graph = grimp.build_graph(*names, include_external_packages=True, cache_dir=None)
    for importer, imported in _excepted(linted["contracts"]):
        graph.remove_import(importer=importer, imported=imported)
    orders = {c["containers"][0]: c["layers"] for c in linted["contracts"] if "containers" in c}
    third = {name: _declared(graph, project, name) for name in names}
    found = []
    for name in names:
        rows = [tuple(row.split(" | ")) for row in orders.get(name, ()) if not row.startswith("_")]
        rows = rows or [_children(graph, name)]
        others = [other for other in names if other != name]
        elsewhere = set().union(*(third[other] for other in others))
        imports = {
            other
            for other in others
            if graph.direct_import_exists(importer=name, imported=other, as_packages=True)
        }
        only = tuple(sorted(third[name] - elsewhere))
        found.append(Package(name=name, rows=tuple(rows), imports=frozenset(imports), only_here=only))
    return sorted(found, key=lambda package: (len(package.imports), package.name))


def _excepted(contracts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Imports that the contracts except by name: of the same program, or of another interpreter."""
    words = [each.split(" -> ") for contract in contracts for each in contract.get("ignore_imports", ())]
    return [(importer, imported) for importer, imported in words]


def _children(graph: grimp.ImportGraph, package: str) -> tuple[str, ...]:
    return tuple(sorted(child.rpartition(".")[2] for child in graph.find_children(package)))


def _declared(graph: grimp.ImportGraph, project: dict[str, Any], package: str) -> set[str]:
    """Third-party packages that pyproject.toml names and the package imports."""
    told = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["run"]]
    told += project["project"]["optional-dependencies"]["app"]
    wanted = {re.split(r"[^\w]", text)[0] for text in told}
    inside = graph.find_descendants(package) | {package}
    return wanted & set().union(*(graph.find_modules_directly_imported_by(module) for module in inside))


def wings(root: Path = ROOT) -> list[str]:
    """Every wing as a path: `topology/fabric`."""
    names = [f"{p.name}/{part}" for p in packages(root) for row in p.rows for part in row]
    return [name for name in names if (root / name).is_dir()]


def draw(found: list[Package], root: Path = ROOT) -> str:
    """The picture as SVG text."""
    lines = {package.name: _lines(package) for package in found}
    inner = max(len(rows) for rows in lines.values()) * (BOX + SPACE) + SPACE
    height, width = TOP + HEAD + inner + FOOT + MARGIN, 2 * MARGIN + len(found) * (COLUMN + GAP) - GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>Packages of Meshplan: {', '.join(package.name for package in found)}</title>",
        f"<style>{STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"',
        'orient="auto">',
        '<path class="tip" d="M0,0 L8,4 L0,8 z"/></marker>',
        f'<rect class="page" width="{width}" height="{height}"/>',
        _text(MARGIN, 26, "An arrow runs from a package to one it imports.", "note", anchor="start"),
        _text(MARGIN, 44, "Inside a package, a row imports only rows below it.", "note", anchor="start"),
        _text(width - MARGIN, 26, "solid: a wing (folder) · dashed: a single file", "note", anchor="end"),
    ]
    for index, package in enumerate(found):
        parts += _column(package, lines[package.name], _left(index), TOP + HEAD + inner, root)
    parts += _arrows(found)
    return "\n".join([*parts, "</svg>", ""])


def _lines(package: Package) -> list[list[str]]:
    """Rows broken where the column ends."""
    lines: list[list[str]] = []
    for row in package.rows:
        line: list[str] = []
        for name in row:
            if line and sum(map(_least_width, [*line, name])) + SPACE * len(line) > COLUMN - 2 * PADDING:
                lines.append(line)
                line = []
            line.append(name)
        lines.append(line)
    return lines


def _least_width(name: str) -> float:
    return len(name) * LETTER + 1.4 * PADDING


def _column(package: Package, lines: list[list[str]], left: int, ground: int, root: Path) -> list[str]:
    """A package with its wings, the lowest row on the ground."""
    middle = left + COLUMN / 2
    parts = [
        _box("package", left, TOP, COLUMN, ground - TOP + FOOT),
        _text(middle, TOP + 25, package.name, "name"),
    ]
    for row, line in enumerate(reversed(lines), 1):
        least = [_least_width(name) for name in line]
        more = (COLUMN - 2 * PADDING - SPACE * (len(line) - 1) - sum(least)) / len(line)
        x, y = left + float(PADDING), ground - row * (BOX + SPACE)
        for name, needed in zip(line, least, strict=True):
            kind = "wing" if (root / package.name / name).is_dir() else "file"
            parts += [
                _box(kind, x, y, needed + more, BOX),
                _text(x + (needed + more) / 2, y + 17, name, ""),
            ]
            x += needed + more + SPACE
    only = textwrap.wrap(f"only here: {', '.join(package.only_here)}" * bool(package.only_here), 28)
    return parts + [_text(middle, ground + 18 + 15 * line, text, "quiet") for line, text in enumerate(only)]


def _arrows(found: list[Package]) -> list[str]:
    """Neighbours are joined straight, others by an arc over what lies between; long arcs span short ones."""
    place = {package.name: index for index, package in enumerate(found)}
    pairs = [(place[p.name], place[imported]) for p in found for imported in p.imports]
    far = sorted(pair for pair in pairs if pair[0] - pair[1] > 1)
    paths = [
        f"M{_left(start)},{TOP + HEAD / 2} L{_left(end) + COLUMN},{TOP + HEAD / 2}"
        for start, end in sorted(set(pairs) - set(far))
    ]
    for start, end in far:
        leave = _left(start) + COLUMN * (0.08 + 0.12 * (start - end - 2))
        reach = _left(end) + COLUMN * (0.92 - 0.12 * (start - end - 2))
        rise = TOP - 4 / 3 * ARC * (start - end)
        paths.append(f"M{leave:.1f},{TOP} C{leave:.1f},{rise:.1f} {reach:.1f},{rise:.1f} {reach:.1f},{TOP}")
    return [f'<path class="arrow" marker-end="url(#tip)" d="{path}"/>' for path in paths]


def _left(index: int) -> int:
    return MARGIN + index * (COLUMN + GAP)


def _box(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="5"/>'


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "middle") -> str:
    of_class = f' class="{kind}"' if kind else ""
    return f'<text{of_class} x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(draw(packages()), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
