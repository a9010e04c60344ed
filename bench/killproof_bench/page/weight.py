"""What a page leaves out so that it stays small enough to be sent.

A run of many rounds has tens of thousands of points, each with the words that the pointer shows.
Those words go first, then whole pictures and tables, the heaviest before the others; what is left
out says so in its place. Nothing is lost: the recorded result beside the page has every figure.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from killproof_bench.page import charts
from killproof_bench.page.content import Chart, Curves, Page, Part, Prose, Series, Table

#: A picture of fewer points keeps its words: they weigh nothing, and somebody reads each.
POINTS_WITH_TIPS = 200


def fitted(page: Page, render: Callable[[Page], str], bytes_max: int) -> str:
    """Return the page as text of less than so many bytes, with as much in it as has room.

    Only a page whose sentences alone are larger stays so: it is better than none.
    """
    text = render(page)
    while len(text.encode("utf-8")) >= bytes_max:
        heavy = _heaviest(page)
        if heavy is None:
            break
        page = _with(page, heavy, _lighter(heavy))
        text = render(page)
    return text


def _heaviest(page: Page) -> Chart | Table | None:
    """Return what loses something next: words of points first, whole parts only after them."""
    parts = [part for section in page.sections for part in section.parts]
    large = [part for part in parts if isinstance(part, Chart) and _has_many_tips(part)]
    whole = [part for part in parts if isinstance(part, Chart | Table)]
    return max(large or whole, key=_bytes, default=None)


def _has_many_tips(chart: Chart) -> bool:
    if not isinstance(chart.picture, Curves):
        return False
    return len([tip for one in chart.picture.series for tip in one.tips if tip]) > POINTS_WITH_TIPS


def _bytes(part: Chart | Table) -> int:
    if isinstance(part, Chart):
        return len(charts.pictures([part])) + (0 if part.numbers is None else _bytes(part.numbers))
    return sum(len(cell.encode("utf-8", "replace")) for row in part.rows for cell in row)


def _lighter(part: Chart | Table) -> Part:
    if isinstance(part, Table):
        return Prose(text=_left_out(f"the table {part.label!r}"), small=True)
    if isinstance(part.picture, Curves) and _has_many_tips(part):
        series = [_without_tips(one) for one in part.picture.series]
        caption = f"{part.caption} No words at the pointer: there are too many points."
        return replace(part, picture=replace(part.picture, series=series), caption=caption)
    return Prose(text=_left_out(f"the picture {part.title!r}"), small=True)


def _without_tips(series: Series) -> Series:
    return replace(series, tips=[""] * len(series.tips))


def _left_out(what: str) -> str:
    return (
        f"Left out: {what} would make this page too large to send. The recorded result beside "
        "it, a JSON file, has the figures."
    )


def _with(page: Page, old: Part, new: Part) -> Page:
    def changed(parts: Iterable[Part]) -> list[Part]:
        return [new if part is old else part for part in parts]

    return replace(
        page, sections=[replace(each, parts=changed(each.parts)) for each in page.sections]
    )
