"""The page in a real Chromium: nothing is cut off on screens of two sizes and on paper, which has no parts to press."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.rig import chromium
from tests.support.loops import in_loop

pytestmark = [pytest.mark.real("chromium"), pytest.mark.timeout(1600)]

A4 = 718  # pixels between margins of 1 cm
# What reaches beyond the page, unless a bar scrolls its place there, which paper has not.
CUT_OFF = """[...document.querySelectorAll("main *")].filter((one) => {
  const place = matchMedia("print").matches ? null : one.closest(".scroll"), box = one.getBoundingClientRect();
  return box.width > 0 && box.right > innerWidth + 1 && !(place && getComputedStyle(place).overflowX === "auto");
}).map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`)"""
LONG_NAMES = """document.querySelectorAll("td:not(.n)").forEach((one) => {
  if (!one.children.length) one.textContent += "-" + "x".repeat(40);
  one.classList.remove("s");  // the page marks short texts
})"""
SHOWN = (
    '[...document.querySelectorAll("nav a, .filters select, .drawing button")].filter((one) => one.offsetParent).length'
)


@pytest.mark.parametrize(("width", "is_dark", "is_paper"), [(390, True, False), (1440, False, False), (A4, True, True)])
@in_loop
async def test_a_page_fits(width: int, is_dark: bool, is_paper: bool, job_directory: Path, tmp_path: Path) -> None:
    async with chromium(tmp_path) as browser:
        tab = await browser.tab((job_directory / "report.html").as_uri(), width, 1000, is_dark=is_dark)
        if is_paper:
            await tab.call("Emulation.setEmulatedMedia", media="print")
        await tab.run(LONG_NAMES)
        assert await tab.run(CUT_OFF) == []
        assert (await tab.run(SHOWN) == 0) is is_paper
        black = "rgb(18, 22, 31)"
        assert (await tab.run("getComputedStyle(document.body).backgroundColor") == black) is (is_dark and not is_paper)
        assert not tab.said
