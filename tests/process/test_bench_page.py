"""The pages of the bench, in a real browser: they ask nobody, and everybody can read them.

One Chromium for the whole module, as in test_web. The results are made up, field by field, from
the types of the dataclasses: what a page does with a figure is looked at, not what the figure is.
"""

import dataclasses
import json
import os
import shutil
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from typer.testing import CliRunner

from killproof_bench import page as pages
from killproof_bench.cli import app
from killproof_bench.page import kinds

SECONDS_MAX = 120.0
CHROMIUM = os.environ.get("KILLPROOF_CHROMIUM") or shutil.which("chromium")
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
#: Texts that are one of a few words, or have a form.
WORDS = {"arm": "killproof", "started": "2026-11-30T10:00:00+00:00"}
EVIL = "<script>document.title='owned'</script>"


def filled(kind: type[Any], /, **given: object) -> Any:
    """Return a dataclass with something in every field, and what is given in its own."""
    hints = typing.get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    return kind(**{n: given[n] if n in given else something(n, hints[n]) for n in fields})


def something(name: str, hint: Any) -> Any:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return something(name, next(part for part in inside if part is not type(None)))
    if origin is tuple:
        several = inside[:1] * 2 if inside[-1] is Ellipsis else inside
        return tuple(something(name, part) for part in several)
    if origin is typing.Literal:
        return inside[0]
    if origin is dict:
        return {name: f"{name} {EVIL}"}
    if dataclasses.is_dataclass(hint):
        return filled(typing.cast(type[Any], hint))
    return {int: 3, float: 1.5, bool: True, str: WORDS.get(name, name.replace("_", " "))}[hint]


def result_of(kind: kinds.Kind, **given: object) -> Any:
    known = {"schema": kind.schema(), "verdict": "pass", "command": EVIL}
    return filled(kind.type(), **{**known, "sentence": f"It holds. {EVIL}", **given})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        reason = "NO BROWSER: apt-get install chromium, or name one in $KILLPROOF_CHROMIUM"
        os.write(2, f"\n*** tests/process/test_bench_page.py: {reason} ***\n".encode())
        pytest.skip(reason)
    with sync_playwright() as playwright:
        # A sandbox needs rights that a container does not give; the page is ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the page of every kind of result once."""
    folder = tmp_path_factory.mktemp("pages")
    for kind in kinds.KINDS:
        pages.write(result_of(kind), folder / f"{kind.name}.html")
        assert (folder / f"{kind.name}.html").stat().st_size < pages.BYTES_MAX
    return {kind.name: folder / f"{kind.name}.html" for kind in kinds.KINDS}


def shown(browser: Browser, file: Path, **options: Any) -> tuple[Page, list[str]]:
    """Open a page in a window of its own; return what it asked of anybody, or said was wrong."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(SECONDS_MAX * 1_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on(
        "request", lambda asked: wrong.append(asked.url) if asked.url != file.as_uri() else None
    )
    page.goto(file.as_uri())
    return page, wrong


def is_drawn(page: Page) -> list[str]:
    """Wait until every picture is there; return their names."""
    page.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
    names = page.locator(".plot").evaluate_all("plots => plots.map(plot => plot.id)")
    for name in names:
        expect(page.locator(f"#{name} svg").first).to_be_attached(timeout=SECONDS_MAX * 1_000)
    return [str(name) for name in names]


# One page stands for all: one template draws them, and this one has nearly every sort of picture.
def test_a_page_draws_every_picture_and_asks_nobody_for_anything(
    browser: Browser, written: dict[str, Path]
) -> None:
    page, wrong = shown(browser, written["capacity"], viewport={"width": 390, "height": 800})

    assert len(is_drawn(page)) > 4
    assert wrong == []
    assert page.title() != "owned"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.context.close()


def test_a_page_breaks_no_rule_of_accessibility_in_light_nor_in_dark(
    browser: Browser, written: dict[str, Path]
) -> None:
    page, _ = shown(browser, written["peers"], color_scheme="light")
    is_drawn(page)
    # Inside a picture there is nothing to be read: it is one, with a name and its words beside it.
    within = {"exclude": [[".plot > *"]]}
    found = Axe().run(page, context=within, options=RULES).response["violations"]
    page.emulate_media(color_scheme="dark")
    found += Axe().run(page, context=within, options=CONTRAST).response["violations"]

    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
    page.context.close()


def test_without_a_script_a_page_says_everything_in_text_and_tables(
    browser: Browser, written: dict[str, Path]
) -> None:
    page, _ = shown(browser, written["proof"], java_script_enabled=False)

    expect(page.get_by_role("heading", level=1)).to_contain_text("It holds.")
    for table in page.locator("table").all():
        expect(table).to_be_visible()
    assert page.locator("details:not([open])").count() == 0
    page.context.close()


# Without a browser.


def test_the_same_result_gives_the_same_page(written: dict[str, Path]) -> None:
    kind = next(kind for kind in kinds.KINDS if kind.name == "gate")

    assert pages.render(result_of(kind)) == written["gate"].read_text("utf-8")


def test_a_page_that_would_be_too_large_has_less_in_it(
    written: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = next(kind for kind in kinds.KINDS if kind.name == "gate")
    monkeypatch.setattr(pages, "BYTES_MAX", written["gate"].stat().st_size)
    pages.write(result_of(kind), tmp_path / "gate.html")

    assert (tmp_path / "gate.html").stat().st_size < pages.BYTES_MAX
    assert "Left out: the picture" in (tmp_path / "gate.html").read_text("utf-8")


def test_a_recorded_result_gives_the_page_that_its_command_wrote(
    written: dict[str, Path], tmp_path: Path
) -> None:
    for kind in kinds.KINDS:
        recorded = tmp_path / f"{kind.name}.json"
        recorded.write_text(json.dumps(dataclasses.asdict(result_of(kind))), encoding="utf-8")

    # One of them through the command, for a page takes a while.
    made = CliRunner().invoke(app, ["report", str(tmp_path / "peers.json")])

    assert made.output == f"{tmp_path / 'peers.html'}\n"
    assert (tmp_path / "peers.html").read_bytes() == written["peers"].read_bytes()
    for kind in kinds.KINDS:
        text = (tmp_path / f"{kind.name}.json").read_text("utf-8")
        assert pages.read(text) == result_of(kind)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no json", "this is not JSON"),
        ("[1, 2]", "this is not a result of the bench that has a page"),
        ('{"schema": 1, "seed": 2}', "this is not a result of the bench that has a page"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(text, encoding="utf-8")
    made = CliRunner().invoke(app, ["report", str(file)])

    assert isinstance(made.exception, ValueError)
    assert str(made.exception).startswith(f"{str(file)!r}: {told}")
    assert "\n" not in str(made.exception)
    assert not file.with_suffix(".html").exists()


@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.name)
def test_a_result_of_a_newer_schema_is_refused_by_its_number(kind: kinds.Kind) -> None:
    document = dataclasses.asdict(result_of(kind, schema=kind.schema() + 1))
    document["a field of tomorrow"] = 1

    with pytest.raises(ValueError, match=rf"{kind.name} result has schema {kind.schema() + 1}"):
        pages.read(json.dumps(document))


def test_only_a_type_that_has_a_page_can_be_written() -> None:
    assert all(pages.can_write(kind.type()) for kind in kinds.KINDS)
    assert not pages.can_write(dict)
    with pytest.raises(TypeError, match="there is no page for a dict"):
        pages.render({})
