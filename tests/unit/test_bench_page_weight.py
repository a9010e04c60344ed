"""A page that would be too large to send loses words at the pointer first, then whole pictures."""

from killproof_bench.gate import sequential
from killproof_bench.page import gate, weight
from killproof_bench.page.content import Axis, Chart, Curves, Page, Prose, Section, Series, Table


def chart(name: str, points: int) -> Chart:
    series = Series(
        name=name,
        ink="blue",
        x=[float(x) for x in range(points)],
        y=[1.0] * points,
        tips=[f"{name}, second {x}: so many jobs/s" for x in range(points)],
    )
    picture = Curves(x=Axis(name="x"), y=Axis(name="y"), series=[series])
    return Chart(id=name, title=name, picture=picture, caption="A caption.")


LARGE, SMALL = chart("large", 900), chart("small", 20)
FIGURES = Table(label="Figures", head=("a", "b"), rows=[("a", "1")])
PAGE = Page(
    title="",
    kicker=(),
    sentence="It holds.",
    badges=(),
    tiles=(),
    sections=[Section(id="s", title="S", parts=[SMALL, LARGE, FIGURES])],
)


def parts_within(bytes_max: int) -> list[object]:
    """Return the parts of the last page that was tried: a page weighs what its repr does."""
    tried: list[Page] = []

    def render(page: Page) -> str:
        tried.append(page)
        return repr(page)

    weight.fitted(PAGE, render, bytes_max)
    return list(tried[-1].sections[0].parts)


def test_a_page_that_has_room_keeps_everything() -> None:
    assert parts_within(1_000_000) == [SMALL, LARGE, FIGURES]


def test_words_of_many_points_go_before_any_picture_does() -> None:
    small, large, figures = parts_within(len(repr(PAGE)))

    assert (small, figures) == (SMALL, FIGURES)
    assert isinstance(large, Chart)
    assert isinstance(large.picture, Curves)
    assert len(large.picture.series[0].y) == 900
    assert set(large.picture.series[0].tips) == {""}
    assert "too many points" in large.caption


def test_a_picture_that_is_left_out_is_named_in_its_place() -> None:
    small, large, figures = parts_within(6_000)

    assert (small, figures) == (SMALL, FIGURES)
    assert isinstance(large, Prose)
    assert "the picture 'large' would make this page too large" in large.text


def test_nothing_can_make_the_report_fail() -> None:
    assert all(isinstance(part, Prose) for part in parts_within(1))


def test_the_line_in_the_picture_is_what_the_gate_promises_to_find() -> None:
    assert gate.FOUND == 1.0 + sequential.SLOWDOWN
