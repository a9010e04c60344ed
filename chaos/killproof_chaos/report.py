"""The report of a run: one HTML file that opens without a network, and a Markdown one to commit.

Both are pure functions of the store: the same store gives the same bytes, whenever and wherever
the report is made. Whatever a store holds may be hostile (a payload, an error's text, a name), so
every text is escaped, cut to a length, and freed of characters that a page cannot show; and the
page forbids itself to load anything.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from killproof_chaos import report_words, summary
from killproof_chaos.report_figures import MARKS_MAX, Figures, figures_of
from killproof_chaos.report_markdown import markdown
from killproof_chaos.report_witness import EVENTS_MAX, Timeline, timeline_of
from killproof_evidence.evidence import Evidence
from killproof_evidence.finding import VIOLATED
from killproof_evidence.judge import render_rows
from killproof_evidence.store import Store

#: A report is mailed and attached; 2 MiB pass everywhere, and 1.3 of them are bokeh's script.
BYTES_MAX: Final = 2 * 1024 * 1024
#: Witnesses beside the first one of each promise, told in a sentence.
OTHERS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much of a store's own text a page takes in."""

    events: int  #: rows of a witness's picture
    lines: int  #: that prove a violation
    chars: int  #: of one text


#: The first that gives a page below `BYTES_MAX` is taken; only a hostile store needs the last.
BUDGETS: Final = (
    Budget(events=EVENTS_MAX, lines=20, chars=600),
    Budget(events=16, lines=6, chars=300),
    Budget(events=0, lines=3, chars=100),
)
MISSED_MAX: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A violated promise, with its first witness in full."""

    number: str
    sentence: str
    violations: int
    story: str
    job: str | None
    lines: Sequence[Mapping[str, Any]]
    lines_left_out: int
    timeline: Timeline | None
    fresh: bool  #: no promise above tells the story of the same job
    others: Sequence[str]  #: the stories of more witnesses


@dataclass(frozen=True, slots=True, kw_only=True)
class Sometimes:
    """Something rare that had to happen at least once."""

    sentence: str
    met: bool


def write_report(store: Path) -> Path:
    """Write report.html into the store of a judged run; return its path.

    Raises:
        StoreError: the run was not judged yet, or run.json is missing; definite.
        ContractError: contract.toml is missing or wrong; definite.
    """
    opened = Store(store)
    text = render(opened)
    part = opened.report.with_name(f".{opened.report.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(opened.report)
    return opened.report


def write_markdown(stores: Path | Sequence[Path], out: Path) -> Path:
    """Write the Markdown report of one run or of several, and the first one's HTML beside it.

    Args:
        stores: judged runs; with several, the first is told in full and all stand in a table.
        out: such as `reports/chaos-proc.md`; the HTML gets the same name with `.html`.

    Raises:
        StoreError: a run was not judged yet, or there is none at all; definite.
    """
    opened = [Store(path) for path in ([stores] if isinstance(stores, Path) else stores)]
    if not opened:
        raise ValueError("write_markdown needs at least one store")
    page = out.with_suffix(".html")
    page.write_text(render(opened[0]), encoding="utf-8")
    figures = figures_of(Evidence(opened[0]))
    runs = [(store.read_verdict(), store.read_run()) for store in opened]
    out.write_text(markdown(runs, figures, page.name), encoding="utf-8")
    return out


def render(store: Store) -> str:
    """Return the page; where it would be too large, with shorter witnesses."""
    record, run = store.read_verdict(), store.read_run()
    evidence = Evidence(store)
    figures = figures_of(evidence)
    text = ""
    for budget in BUDGETS:
        told: set[object] = set()
        broken = [
            _broken(evidence, number, found, told, budget)
            for number, found in record["properties"].items()
            if found["verdict"] == VIOLATED
        ]
        text = _page(record, run, evidence, figures, broken, budget.chars)
        if len(text.encode("utf-8", errors="replace")) < BYTES_MAX:
            break
    return text


def pages(chars_max: int = BUDGETS[0].chars) -> Environment:
    """Return the environment of all pages: what is shown is escaped and cut, and must be there."""
    return Environment(
        loader=PackageLoader("killproof_chaos"),
        autoescape=True,
        finalize=partial(clean, chars_max=chars_max),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def clean(value: object, chars_max: int = BUDGETS[0].chars) -> object:
    r"""Make a text fit to be shown; everything else stays as it is.

    Control characters, lone surrogates and those that turn the direction of what follows become
    visible, and what is too long is cut: a payload must not change how the page around it reads.

    >>> clean("a\x00b"), clean("fine"), clean(7)
    ('a\\x00b', 'fine', 7)
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = value if len(value) <= chars_max else f"{value[:chars_max]} ..."
    return "".join(_visible(letter) for letter in text)


def _visible(letter: str) -> str:
    if letter in "\n\t" or unicodedata.category(letter) not in {"Cc", "Cf", "Cs", "Co", "Cn"}:
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _broken(
    evidence: Evidence,
    number: str,
    found: Mapping[str, Any],
    told: set[object],
    budget: Budget,
) -> Broken:
    witnesses = found["witnesses"]
    first: Mapping[str, Any] = (
        witnesses[0] if witnesses else {"job": None, "story": "", "lines": []}
    )
    broken = Broken(
        number=number,
        sentence=report_words.SENTENCES.get(number, number),
        violations=found.get("violations", len(witnesses)),
        story=first["story"],
        job=first.get("job"),
        lines=first["lines"][: budget.lines],
        lines_left_out=max(0, len(first["lines"]) - budget.lines),
        timeline=timeline_of(evidence, first, budget.events) if budget.events else None,
        fresh=first.get("job") not in told,
        others=[witness["story"] for witness in witnesses[1 : 1 + OTHERS_MAX]],
    )
    told.add(first.get("job"))
    return broken


def _page(
    record: Mapping[str, Any],
    run: Mapping[str, Any],
    evidence: Evidence,
    figures: Figures,
    broken: Sequence[Broken],
    chars_max: int,
) -> str:
    environment = pages(chars_max)
    environment.filters |= {"ms": report_words.duration, "counted": summary.counted}
    reasons, reasons_left_out = report_words.reasons(record)
    bound = evidence.contract.parameters.get("recovery_ms")
    obligations = run.get("obligations") or {}
    met = set(obligations.get("hit", ()))
    missed = record["coverage"]["missed"]
    # Not at the top: the chart library takes a second to import, and each command would pay it.
    from killproof_chaos import report_plots

    return environment.get_template("report.html.j2").render(
        record=record,
        run=run,
        sentence=report_words.verdict_sentence(record),
        mark=report_words.mark,
        words=report_words.WORDS,
        reasons=reasons,
        reasons_left_out=reasons_left_out,
        rows=render_rows(record),
        unanswered=report_words.unanswered(record),
        broken=broken,
        figures=figures,
        marks_max=MARKS_MAX,
        recovery_bound_ms=bound,
        sometimes=[
            Sometimes(sentence=name, met=name in met)
            for name in obligations.get("obliged", ())
            if "@" not in name
        ],
        missed=missed[:MISSED_MAX],
        missed_left_out=max(0, len(missed) - MISSED_MAX),
        environment=report_words.environment_rows(record, run),
        limits=report_words.limits(record, run),
        command=" ".join(map(str, run.get("argv") or ())),
        started=report_words.started(run),
        # Both are made here, hold no `<`, or come from the bokeh package itself.
        pictures=Markup(report_plots.pictures(figures, bound)),
        script=Markup(report_plots.script()),
    )
