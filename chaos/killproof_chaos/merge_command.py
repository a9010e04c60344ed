"""The command `killproof chaos merge`: the stores of all shards of a campaign, as one verdict."""

import time
from pathlib import Path
from typing import Annotated

import typer

from killproof_chaos import prove_command
from killproof_chaos.command import (
    Ending,
    JsonOption,
    JunitOption,
    ReportOption,
    StoreOption,
    UnknownOption,
    new_store,
)


def merge(
    stores: Annotated[list[Path], typer.Argument(help="The stores that the shards have made.")],
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Join the stores of `killproof chaos prove --shard i/n` into one store and one verdict.

    All must be of one target, version, contract and plan. A shard that is not there makes the
    verdict unknown, unless another has found a violation. Of each run its verdict and page are
    copied; what they rest on stays in the store of its shard.
    """
    from killproof_chaos.prove import stores as reading

    found = sorted((reading.read(path) for path in stores), key=lambda shard: shard.number)
    reading.refuse(found)
    first = found[0]
    ending = Ending(unknown=unknown, junit=junit, as_json=as_json, report=report)
    place = new_store(store, "prove", Path(str(first.run["target"])).stem, "merged")
    reading.gather(found, place)
    place.write_contract(reading.contract_of(first))
    numbers = [shard.number for shard in found]
    words = [str(word) for word in first.run["argv"]]
    plain = words[: words.index("--shard")] if "--shard" in words else words
    run = {
        **first.run,
        "argv": ["killproof", "chaos", "merge", *map(str, stores)],
        # Without its shards the campaign would be a smaller one.
        "replay": f"{' '.join(plain)} --shard i/{reading.count_of(first)}",
        "started": min(shard.run["started"] for shard in found),
        "ended": max(shard.run.get("ended", time.time()) for shard in found),
        "interrupted": any(shard.run.get("interrupted") or shard.is_cut for shard in found),
        reading.HERE: numbers,
    }
    place.write_run(run)
    case = reading.case_of([reading.read(place.path)])
    prove_command.finish(prove_command.concluded(case, run, place), place, ending)
