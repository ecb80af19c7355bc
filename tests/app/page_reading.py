"""What a person reads on a page that `open_page` has drawn, and the question most of these tests ask."""

from typing import Any

SMALL = {"model": "llama-3.1-8b", "gpus": "8"}
"""A question that is planned in a fraction of a second."""


def words(page: Any) -> str:
    """All text of a page, without the backslashes that keep Markdown from reading it; spaces may break."""
    kinds = (
        page.header,
        page.subheader,
        page.markdown,
        page.caption,
        page.code,
        page.info,
        page.warning,
        page.error,
    )
    text = "\n".join(str(element.value) for kind in kinds for element in kind)
    return text.replace("\\", "").replace("\N{NO-BREAK SPACE}", " ")


def numbers(page: Any) -> dict[str, str]:
    """Headline numbers by label."""
    return {metric.label: metric.value for metric in page.metric}


def packed(**flags: Any) -> str:
    """A whole question as it stands in a URL."""
    from app.requests.links import pack
    from planner.questions.flags import Flags
    from planner.questions.training import understand

    return pack(understand(Flags(**flags)).request)
