"""Which drafter drafts, with fake drafters and a fake clock."""

from __future__ import annotations

import pytest

from playground.decoding.drafters.composite import AGAIN, SHARE, TRIES, AdaptiveDrafter
from tests.decoding.fakes import GREEDY, ScriptedDrafter

TRIED = 1 + 3 * TRIES  # rounds: the prefill, then each of the two drafters and plain decoding


class Race:
    """Two drafters, which draft 1s and 2s. The test says what a round takes and gives; a plain one takes a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.silent: set[int] = set()
        self.drafters = {n: ScriptedDrafter(lambda ids, k, n=n: [] if n in self.silent else [n] * k) for n in (1, 2)}
        self.adaptive = AdaptiveDrafter(*self.drafters.values(), clock=lambda: self.now)
        self.length = 5

    def run(self, rounds: int, kept: dict[int, int], seconds: dict[int, float]) -> list[int]:
        """Who drafted in each of the rounds, 0 for nobody. `kept`, `seconds`: of the rounds of each."""
        who = []
        for _ in range(rounds):
            draft = self.adaptive.propose([0] * self.length, 4, 0.0, GREEDY)
            who.append(draft.ids[0] if draft.ids else 0)
            self.now += seconds.get(who[-1], 1.0)
            end = self.length + kept.get(who[-1], 0)
            self.adaptive.commit(end)
            self.length = end + 1
        return who

    def seconds_for(self, tokens: int, kept: dict[int, int], seconds: dict[int, float]) -> float:
        """The time until so many tokens are there."""
        start, end = self.now, self.length + tokens
        while self.length < end:
            self.run(1, kept, seconds)
        return self.now - start


def test_the_one_that_gives_more_tokens_is_chosen_soon():
    who = Race().run(50, kept={1: 0, 2: 3}, seconds={1: 1.0, 2: 1.5})
    assert set(who[:TRIED]) == {0, 1, 2}, "each is tried"
    assert who[TRIED:].count(2) >= 35


def test_the_one_whose_rounds_are_shorter_is_chosen_soon():
    who = Race().run(50, kept={1: 2, 2: 3}, seconds={1: 1.0, 2: 2.0})
    assert who[TRIED:].count(1) >= 35


@pytest.mark.parametrize(
    ("kept", "seconds"),
    [({1: 0, 2: 0}, {1: 1.3, 2: 1.6}), ({1: 1, 2: 1}, {1: 2.5, 2: 3.0}), ({1: 0, 2: 2}, {1: 4.0, 2: 8.0})],
)
@pytest.mark.parametrize("tokens", [256, 1024])
def test_where_drafting_is_a_loss_the_run_takes_little_longer_than_plain_decoding(kept, seconds, tokens):
    race = Race()
    first = TRIES * sum(seconds[n] - (kept[n] + 1) for n in (1, 2))
    last = max(seconds.values())
    assert race.seconds_for(tokens, kept, seconds) <= 1.05 * tokens + first + last
    assert race.run(100, kept, seconds).count(0) >= 90


def test_what_is_tried_again_costs_no_more_than_its_share_of_a_long_run():
    race, kept, seconds = Race(), {1: 0, 2: 0}, {1: 3.0, 2: 5.0}
    assert race.seconds_for(2000, kept, seconds) <= 2000 / (1 - SHARE) + 5.0


def test_where_drafting_pays_plain_rounds_are_few():
    who = Race().run(200, kept={1: 3, 2: 1}, seconds={1: 1.2, 2: 1.2})
    assert who.count(1) >= 165


def test_drafting_goes_on_once_it_pays():
    race = Race()
    race.run(100, kept={}, seconds={1: 1.5, 2: 1.5})
    who = race.run(100, kept={1: 3, 2: 3}, seconds={})
    assert who[-20:].count(0) <= 2


def test_the_time_of_the_prompt_counts_against_nobody():
    race = Race()
    race.run(1, kept={}, seconds={0: 100.0})
    assert race.run(50, kept={1: 3, 2: 1}, seconds={}).count(1) > 35


def test_a_change_of_fortune_is_noticed():
    race = Race()
    race.run(60, kept={1: 4, 2: 1}, seconds={})
    who = race.run(60, kept={1: 0, 2: 1}, seconds={})
    assert who[2 * AGAIN :].count(2) >= 22, "the one that was better has become worse"
    who = race.run(60, kept={1: 4, 2: 1}, seconds={})
    assert who[2 * AGAIN :].count(1) >= 22, "and better again"


def test_where_the_best_has_nothing_to_propose_the_next_is_asked():
    race = Race()
    race.run(TRIED + 3, kept={1: 4, 2: 1}, seconds={})
    race.silent = {1}
    assert set(race.run(5, kept={2: 1}, seconds={})) == {2}
    race.silent = {1, 2}
    assert set(race.run(5, kept={}, seconds={})) == {0}
    race.silent = {2}
    assert set(race.run(5, kept={1: 4}, seconds={})) == {1}


def test_every_drafter_hears_of_every_round():
    race = Race()
    race.run(7, kept={1: 4, 2: 0}, seconds={})
    assert race.drafters[1].committed == race.drafters[2].committed
    assert len(race.drafters[1].committed) == 7


def test_the_same_times_give_the_same_choices():
    first, second = (Race().run(50, kept={1: 1, 2: 2}, seconds={1: 1.0, 2: 1.3}) for _ in range(2))
    assert first == second
