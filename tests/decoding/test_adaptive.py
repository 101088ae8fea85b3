"""Which drafter drafts, on fake drafters and a fake clock."""

from __future__ import annotations

from itertools import pairwise

from playground.decoding.drafters.adaptive import AGAIN, AdaptiveDrafter
from tests.decoding.fakes import ScriptedDrafter


class Race:
    """Two drafters, of which one drafts 1s and the other 2s; what their rounds take and give is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.silent: set[int] = set()
        self.drafters = {n: ScriptedDrafter(lambda ids, k, n=n: [] if n in self.silent else [n] * k) for n in (1, 2)}
        self.adaptive = AdaptiveDrafter(*self.drafters.values(), clock=lambda: self.now)
        self.length = 5

    def run(self, rounds: int, kept: dict[int, int], seconds: dict[int, float]) -> list[int]:
        """Who drafted in each of the rounds, 0 for nobody. `kept`, `seconds`: of each one's rounds."""
        who = []
        for _ in range(rounds):
            draft = self.adaptive.propose([0] * self.length, 4, 0.0)
            who.append(draft.ids[0] if draft.ids else 0)
            self.now += seconds.get(who[-1], 1.0)
            stands = self.length + kept.get(who[-1], 0)
            self.adaptive.commit(stands)
            self.length = stands + 1
        return who


def test_the_one_that_gives_more_tokens_is_chosen_soon():
    who = Race().run(40, kept={1: 0, 2: 3}, seconds={1: 1.0, 2: 1.5})
    assert set(who[:3]) == {1, 2}, "each is tried"
    assert who[3:].count(1) <= 3


def test_the_one_whose_rounds_are_shorter_is_chosen_soon():
    who = Race().run(40, kept={1: 2, 2: 3}, seconds={1: 1.0, 2: 2.0})
    assert who[3:].count(2) <= 3


def test_the_time_of_the_prompt_counts_against_nobody():
    race = Race()
    race.run(1, kept={1: 3}, seconds={1: 100.0})
    assert race.run(30, kept={1: 3, 2: 1}, seconds={}).count(1) > 25


def test_a_change_of_fortune_is_noticed():
    race = Race()
    race.run(60, kept={1: 4, 2: 1}, seconds={})
    who = race.run(60, kept={1: 0, 2: 1}, seconds={})
    assert who[2 * AGAIN :].count(1) <= 3, "the one that was better has become worse"
    who = race.run(60, kept={1: 4, 2: 1}, seconds={})
    assert who[2 * AGAIN :].count(2) <= 3, "and better again"


def test_one_that_has_not_drafted_for_a_while_goes_first_once():
    who = Race().run(100, kept={1: 4, 2: 0}, seconds={})
    tries = [i for i, n in enumerate(who) if n == 2]
    assert all(later - sooner == AGAIN + 1 for sooner, later in pairwise(tries))
    assert len(tries) >= 5


def test_where_the_best_has_nothing_to_propose_the_next_is_asked():
    race = Race()
    race.run(10, kept={1: 4, 2: 1}, seconds={})
    race.silent = {1}
    assert set(race.run(5, kept={2: 1}, seconds={})) == {2}
    race.silent = {1, 2}
    assert set(race.run(5, kept={}, seconds={})) == {0}
    race.silent = {2}
    assert set(race.run(5, kept={1: 4}, seconds={})) == {1}


def test_every_drafter_is_told_of_every_round():
    race = Race()
    race.run(7, kept={1: 4, 2: 0}, seconds={})
    assert race.drafters[1].committed == race.drafters[2].committed
    assert len(race.drafters[1].committed) == 7


def test_the_same_times_give_the_same_choices():
    first, second = (Race().run(50, kept={1: 1, 2: 2}, seconds={1: 1.0, 2: 1.3}) for _ in range(2))
    assert first == second
