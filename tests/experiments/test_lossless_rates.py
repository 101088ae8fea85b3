"""How often the check of a server calls exact ones lossy, and finds each fault, on servers that really speculate."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from playground.experiments.kinds.lossless import SAMPLED
from playground.metrics import Scored, server_test
from playground.metrics.lossless import ServerTest
from tests.backends.speculative_server import Speculative
from tests.selection import selected

TOKENS = 32  # of an answer
EXACT = {
    "exact": dict(),
    "seldom drafts": dict(every=4),
    "5 % hotter, alone too": dict(heat=1.05),
    "30 % hotter, alone too": dict(heat=1.3),
}
LOSSY = {
    "bonus token from the drafter": dict(fault="bonus from drafter"),
    "correction without residual": dict(fault="no residual"),
    "drafts accepted unseen": dict(fault="draft's p"),
    "the drafter's likeliest, as if drawn from q": dict(fault="told as drawn"),
    "typical acceptance": dict(fault="typical"),
    "p of the place before": dict(fault="the p before"),
    "temperature applied twice": dict(fault="temperature twice"),
    "top-p after verification": dict(fault="top-p after"),
    "30 % hotter than its baseline": dict(heat=1.3),
    "5 % hotter than its baseline": dict(heat=1.05),
}
QUICKLY = 640  # draws that find most faults
SMALL = ("correction without residual", "typical acceptance")  # faults that take more of them
TOO_SMALL = "5 % hotter than its baseline"  # for any test of some thousand tokens


def checked(server: Speculative, standard: Speculative, seed: int, draws: int) -> ServerTest:
    """The test of so many tokens in whose place a draft was verified, as `lossless` scores them, without HTTP."""
    verified, bonus = list[Scored](), list[Scored]()
    answer = seed * 10_000
    while len(verified) < draws:
        answer += 1
        for of, token, alone, best in _answer(server, standard, answer):
            ids = [id_ for id_, _ in best]
            places = (ids.index(it) if it in ids else len(ids) for it in (token, alone))
            (bonus if of == "bonus" else verified).append(Scored(tuple(known for _, known in best), *places))
    return server_test(verified, bonus, SAMPLED["temperature"], SAMPLED["top_p"])


def _answer(server: Speculative, standard: Speculative, seed: int) -> Iterator[tuple[str, int, int, list]]:
    """Yields each token that is tested, one that the standard server draws alone, and the likeliest ones."""
    last, at = 40 + seed % 100, 0
    how = SimpleNamespace(**SAMPLED, seed=seed)
    for tokens, drafted in server.steps([last], how, TOKENS):
        for place, token in enumerate(tokens):
            at += 1
            if drafted:
                alone = SimpleNamespace(**SAMPLED, seed=seed * 100_003 + at)
                yield "bonus" if place == drafted else "verified", token, *standard.one([last], alone)
            last = token


def failed(test: ServerTest) -> bool:
    return not all(it.passed for it in (test.against, test.bonus) if it)


def passed(test: ServerTest) -> bool:
    """Neither failed nor in doubt."""
    return not failed(test) and (test.law is None or test.law.passed)


def of(name: str, tokenizer) -> tuple[Speculative, Speculative]:
    """A server of the table, and what it is compared with: itself without drafts, or an exact one."""
    server = Speculative(tokenizer, **(EXACT | LOSSY)[name])
    return server, Speculative(tokenizer, drafts=False, heat=server.heat if name in EXACT else 1.0)


QUICK = ("exact", "30 % hotter, alone too", "bonus token from the drafter", "p of the place before",
         "the drafter's likeliest, as if drawn from q", "30 % hotter than its baseline")  # fmt: skip


@pytest.mark.parametrize("name", selected([it for it in EXACT | LOSSY if it not in (*SMALL, TOO_SMALL)], QUICK))
def test_the_verdicts_over_servers_known_to_be_exact_and_lossy(name, tiny_tokenizer):
    test = checked(*of(name, tiny_tokenizer), seed=2, draws=QUICKLY)
    assert failed(test) == (name in LOSSY)
    assert (test.logprobs == "wrong") == (name == "30 % hotter, alone too")
    if name == "bonus token from the drafter":
        assert test.against.passed, "the tokens that were verified do not show it"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_exact_servers_are_called_lossy_no_more_often_than_the_level(name, tiny_tokenizer):
    """Of 300 at 0.001, 3 or more would be seen in one run of this test of 270; the larger p-values are right, too."""
    tests = [checked(*of(name, tiny_tokenizer), seed, 320) for seed in range(1_000, 1_300)]
    assert sum(map(failed, tests)) < 3
    least = [min(1.0, 2 * min(it.p_value for it in (test.against, test.bonus) if it)) for test in tests]
    assert sum(p < 0.05 for p in least) <= 27, "15 are expected"


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSY)
def test_lossy_servers_are_found(name, tiny_tokenizer):
    tests = [checked(*of(name, tiny_tokenizer), seed, 8_192 if name in SMALL else 2_048) for seed in range(10)]
    if name in SMALL:
        assert sum(map(passed, tests)) <= 2
    else:
        assert sum(map(failed, tests)) >= 8 or name == TOO_SMALL
