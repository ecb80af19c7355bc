"""Pictures and the report as files, from a real browser."""

import re
import xml.etree.ElementTree as ET

import pytest

from tests.browser.test_story import open_page, settle, take_home

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_every_picture_is_an_svg_and_a_png(page, dashboard, tmp_path):
    """Each chart of a page is listed by its reading, and both files hold a picture with its words."""
    open_page(page, f"{dashboard}/?model=llama-3.1-8b&gpus=8&picture=Which+link+hurts%3F")
    settle(page)
    charts = page.get_by_test_id("stPlotlyChart").count()
    page.get_by_text("Take a picture home").click()
    listed = page.get_by_label("Picture", exact=True).locator("option")
    listed.first.wait_for(state="attached")
    assert listed.count() == charts >= 3
    for number in range(charts):
        page.get_by_label("Picture", exact=True).select_option(str(number))
        with page.expect_download() as caught:
            page.get_by_role("button", name="SVG").click()
        caught.value.save_as(tmp_path / "picture.svg")
        drawn = ET.parse(tmp_path / "picture.svg").getroot()  # noqa: S314 - of our own page
        assert drawn.tag.endswith("svg")
        assert len([one for one in drawn.iter() if one.tag.endswith("text")]) >= 3
        with page.expect_download() as caught:
            page.get_by_role("button", name="PNG").click()
        caught.value.save_as(tmp_path / "picture.png")
        held = (tmp_path / "picture.png").read_bytes()
        assert held.startswith(b"\x89PNG")
        width, height = (int.from_bytes(held[at : at + 4], "big") for at in (16, 20))
        assert width >= 600
        assert height >= 200


def test_the_report_prints_to_a_pdf_and_fetches_nothing(page, context, dashboard, tmp_path):
    """One HTML file: the command, the pictures with their readings, the tables; its PDF has pages."""
    open_page(page, f"{dashboard}/?model=llama-3.1-8b&gpus=8")
    with page.expect_download() as caught:
        take_home(page, "report.html")
    path = tmp_path / "report.html"
    caught.value.save_as(path)
    report = context.new_page()
    asked = []
    report.on("request", lambda request: asked.append(request.url))
    report.goto(path.as_uri())
    report.locator(".main-svg").first.wait_for()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    text = report.inner_text("body")
    assert "plan --model llama-3.1-8b --gpus 8" in text
    assert "Where does the step go?" in text
    printed = report.pdf()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 2
    report.close()
