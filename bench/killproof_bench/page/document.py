"""Turn the parts of a page into HTML.

Whatever a result holds may be hostile (another queue's error text, a version, a command line), so
every text is escaped, cut to a length, and freed of characters that a page cannot show.
"""

import unicodedata
from functools import partial
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from killproof_bench.page import charts, content

#: Of one text; a longer one is no sentence.
CHARACTERS_MAX: Final = 2_000

#: What the template tells apart.
PARTS: Final[tuple[type, ...]] = (
    content.Prose,
    content.Bullets,
    content.Table,
    content.Facts,
    content.Command,
    content.Chart,
    content.Stacks,
)

SIGNS: Final = {"good": "✓", "bad": "✗", "doubt": "?"}


def render(page: content.Page) -> str:
    """Return the page as one HTML document that needs nothing else."""
    environment = Environment(
        loader=PackageLoader("killproof_bench.page"),
        autoescape=True,
        finalize=clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    tests: dict[str, Any] = {kind.__name__.lower(): partial(_is_a, kind) for kind in PARTS}
    environment.tests.update(tests)
    environment.filters["plain"] = _plain
    drawn = [
        part
        for section in page.sections
        for part in section.parts
        if isinstance(part, content.Chart)
    ]
    return environment.get_template("page.html.j2").render(
        page=page,
        signs=SIGNS,
        # Both are made here, hold no `<`, or come from the bokeh package itself.
        pictures=Markup(charts.pictures(drawn)),
        script=Markup(charts.script() if drawn else ""),
        has_pictures=bool(drawn),
    )


def _plain(text: str) -> str:
    """Return a sentence without the marks that Markdown has for code."""
    return text.replace("`", "")


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind)


def clean(value: object) -> object:
    r"""Make a text fit to be shown; everything else stays as it is.

    Control characters, lone surrogates and those that turn the direction of what follows become
    visible, and what is too long is cut.

    >>> clean("a\x00b"), clean("fine"), clean(7)
    ('a\\x00b', 'fine', 7)
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = value if len(value) <= CHARACTERS_MAX else f"{value[:CHARACTERS_MAX]} ..."
    return "".join(_visible(letter) for letter in text)


def _visible(letter: str) -> str:
    if letter in "\n\t" or unicodedata.category(letter) not in {"Cc", "Cf", "Cs", "Co", "Cn"}:
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
