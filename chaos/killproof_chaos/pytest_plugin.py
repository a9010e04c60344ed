"""The pytest plugin: `pytest --killproof-target my_pkg.adapter:target` judges a queue.

Every pytest of an environment that has killproof imports this module. So it imports nothing beyond
pytest and the standard library's own, and does nothing without its option; what acts is in
`pytest_items`, which is imported then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from killproof_chaos.pytest_items import Plugin

#: The name under which the acting half is registered.
ACTING: Final = "killproof-acting"
SECONDS_DEFAULT: Final = 20.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; without the first of them nothing happens."""
    group = parser.getgroup("killproof", "judge a job queue (killproof)")
    group.addoption(
        "--killproof-target",
        action="append",
        default=[],
        metavar="TARGET",
        help="A queue to judge: package.module:attribute, a file, or a name from "
        "`killproof chaos targets`. May be given several times.",
    )
    group.addoption(
        "--killproof-engine",
        default="proc",
        metavar="NAMES",
        help="Engines, separated by commas: proc, crash, disk, sim (default: proc).",
    )
    group.addoption(
        "--killproof-seconds",
        type=float,
        default=SECONDS_DEFAULT,
        metavar="N",
        help=f"About how long each engine works (default: {SECONDS_DEFAULT:g}).",
    )
    group.addoption(
        "--killproof-seed", type=int, metavar="N", help="Of each engine; drawn when not given."
    )
    group.addoption(
        "--killproof-store",
        metavar="DIR",
        help="Where the evidence goes, a new folder in it for each session "
        "(default: killproof-store).",
    )
    parser.addini(
        "killproof_unknown",
        "What becomes of a promise whose verdict is unknown: fail (default) or skip.",
        default="fail",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the acting half if a target is given."""
    config.addinivalue_line(
        "markers",
        "killproof(target, engine, promise): a promise of a queue, judged by an engine; made by "
        "--killproof-target.",
    )
    if config.getoption("killproof_target"):
        from killproof_chaos.pytest_items import Plugin

        config.pluginmanager.register(Plugin.of(config), ACTING)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of xdist which session it belongs to: all of them share its runs."""
    acting: Plugin | None = node.config.pluginmanager.get_plugin(ACTING)
    if acting is not None:
        node.workerinput[ACTING] = str(acting.folder)
