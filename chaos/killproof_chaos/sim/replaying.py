"""Replaying a token: the same target, the same scenario, the same choices, the same story."""

from dataclasses import dataclass

from killproof_chaos import targets
from killproof_chaos.sim.scenarios import SCENARIOS
from killproof_chaos.sim.schedulers import Replay
from killproof_chaos.sim.stage import Stage
from killproof_chaos.sim.story import Story, perform
from killproof_chaos.sim.tokens import Token, TokenInvalid, checksum_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Retold:
    """A token's schedule, played again."""

    token: Token
    story: Story
    is_same: bool  #: every statement and every answer is that of the run that made the token


def retell(text: str) -> Retold:
    """Play the schedule of a token.

    Raises:
        TokenInvalid: it is none, or its scenario is not there any more; definite.
        TargetNotFound: its target is not there; definite.
    """
    token = Token.of_text(text)
    if token.scenario not in SCENARIOS:
        raise TokenInvalid(
            f"scenario {token.scenario!r} of the token is not among {', '.join(SCENARIOS)}: take "
            "the version of killproof that made the token"
        )
    targets.tell_seed(token.seed)
    scenario = token.cut.apply(SCENARIOS[token.scenario])
    with Stage(targets.load(token.target), scenario) as stage:
        performed = perform(stage, Replay(token.choices))
    assert performed is not None, "one schedule can be replayed"
    outcome, story = performed
    return Retold(token=token, story=story, is_same=checksum_of(outcome) == token.checksum)
