"""The page of the architecture and its picture say what the imports say."""

from tools.draw_architecture import PICTURE, ROOT, draw, packages, wings

PAGE = ROOT / "docs" / "architecture.md"


def test_the_picture_is_what_the_imports_draw() -> None:
    """After a wing or an arrow came or went: `python tools/draw_architecture.py`."""
    assert PICTURE.read_text(encoding="utf-8") == draw(packages())


def test_every_wing_is_named_on_the_page() -> None:
    """In the row of its package."""
    rows = {
        line.split("`")[1]: line for line in PAGE.read_text(encoding="utf-8").splitlines() if "| `" in line
    }
    named = [wing for wing in wings() if f"`{wing.partition('/')[2]}/`" in rows[wing.partition("/")[0]]]
    assert named == wings()


def test_every_folder_of_a_package_is_drawn() -> None:
    """No wing hides from the contracts; data is no wing."""
    names = [package.name for package in packages()]
    folders = {
        str(path.parent.relative_to(ROOT)) for name in names for path in (ROOT / name).glob("*/__init__.py")
    }
    assert set(wings()) == folders
