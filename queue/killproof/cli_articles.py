"""The command `killproof articles`: the queue in the words of the articles, on request."""

from dataclasses import asdict
from textwrap import dedent
from typing import Annotated

import typer

from killproof.cli_terminal import DB_DEFAULT, AsJson, Db, existing, print_json

app = typer.Typer()


@app.command()
def articles(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARTICLE]...", help="jobs, tasks, orders; all unless named."),
    ] = None,
    db: Db = DB_DEFAULT,
    is_create: Annotated[bool, typer.Option("--create", help="Make the views.")] = False,
    is_drop: Annotated[
        bool, typer.Option("--drop", help="Take the views away; no job is touched.")
    ] = False,
    is_show: Annotated[
        bool, typer.Option("--show", help="Print the SQL of the views, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Views with the tables, columns and words of the articles, for their queries and INSERTs."""
    from killproof import articles as words
    from killproof.articles_sql import VIEWS

    if is_create + is_drop + is_show > 1:
        raise ValueError("--create, --drop and --show exclude each other")
    wanted = words.check(names or VIEWS)
    if is_show:
        sql = {
            name: [dedent(text).strip() for text in texts]
            for article in wanted
            for name, texts in VIEWS[article].items()
        }
        if as_json:
            print_json(sql)
        else:
            print("\n\n".join(f"{text};" for texts in sql.values() for text in texts))
        return
    with existing(db) as queue:
        if is_create:
            words.create(queue, wanted)
        elif is_drop:
            words.drop(queue, wanted)
        found = [view for view in words.views(queue) if view.article in wanted]
    if as_json:
        print_json([asdict(view) for view in found])
        return
    for view in found:
        print(f"{view.name}: {'made' if view.is_made else 'not made'}")
    if not any(view.is_made for view in found):
        print(f"next: killproof articles {' '.join(names or [])}".rstrip() + " --create")
