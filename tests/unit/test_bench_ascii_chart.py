"""Pictures in a terminal: a figure is where it belongs, and one that was refused has no bar."""

from killproof_bench.ascii_chart import Bar, Curve, bars, curves


def test_a_latency_stands_on_a_log_scale_and_a_refused_one_has_no_bar() -> None:
    rows = [
        Bar(label="a", value=1.0, text="1"),
        Bar(label="b", value=10.0, text="10"),
        Bar(label="c", value=100.0, text="100"),
        Bar(label="d", value=None, text="n/a (n=3)"),
    ]

    assert bars("p99 ms", rows, log=True, columns=10).splitlines() == [
        "p99 ms, log scale from 1 to 100",
        "a | 1",
        "b |##### 10",
        "c |########## 100",
        "d | n/a (n=3)",
    ]


def test_curves_that_meet_are_told_apart_from_one_and_a_limit_is_named() -> None:
    rising = Curve(name="p99", mark="9", points=[(1, 1.0), (2, 10.0)])
    flat = Curve(name="p50", mark="5", points=[(1, 1.0), (2, 1.0)])
    told = curves(
        [rising, flat], x_name="workers", y_name="ms", log_y=True, level=(10.0, "limit")
    ).splitlines()

    assert told[0] == "ms, log scale"
    assert told[1].startswith("      10 |.")
    assert told[1].endswith("9")
    assert told[15].startswith("       1 |=")
    assert told[15].endswith("5")
    assert told[-1].split() == ["9", "p99", "5", "p50", ".", "limit"]


def test_nothing_to_draw_is_a_heading_alone() -> None:
    assert bars("jobs/s", []) == "jobs/s"
    assert curves([], x_name="workers", y_name="ms") == "ms"
