"""The check of a server passes for one that verifies exactly, and fails for one with a fault that servers have had."""

from __future__ import annotations

import json

import numpy as np
import pytest

from playground import results
from playground.backends.connect import server_lanes
from playground.commands import main
from playground.errors import PlaygroundError
from playground.experiments.events import ResultReady, Watch
from playground.experiments.kinds.lossless import Lossless
from playground.experiments.questions import Question
from playground.lane import Request
from playground.metrics import near_tie_of
from playground.presets import custom_pair
from playground.results import LaneCheck, LosslessResult
from playground.views import lossless as view
from playground.views import report
from tests.backends.speculative_server import Behind, Speculative, SpeculativeChat, SpeculativeVllm
from tests.backends.stand_in import standing_in
from tests.tiny import small_llama

FAULTS = ("draft's p", "temperature twice", "top-p after", "bonus from drafter")
ASKED = tuple(Question("qa", Request(text, max_new_tokens=32)) for text in ("Waves?", "Winters?"))


@pytest.fixture
def checked(monkeypatch):
    """Checks a server, alone or against another one."""

    def check(server, baseline=None, draws=640, pair=None) -> LosslessResult:
        by_port = {1: baseline, 2: server} if baseline else {2: server}
        found = []
        with standing_in(Behind(by_port), monkeypatch):
            *baselines, lane = server_lanes([f"http://stand-in:{port}" for port in by_port])[0]
            base = baselines[0] if baselines else None if pair else lane
            work = Lossless(pair=pair, baseline=base, lanes=(lane,), questions=ASKED, draws=draws)
            work(local(pair), Watch(found.append))
        return next(event.result for event in found if isinstance(event, ResultReady))

    return check


def local(pair):
    from playground.backends.local import LocalBackend
    from playground.lane import LOCAL
    from playground.models.store import ModelStore

    return {LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")} if pair else {}


def only(result: LosslessResult) -> LaneCheck:
    (check,) = result.checks
    assert results.from_json(json.loads(json.dumps(results.to_json(result)))) == result
    return check


def test_an_exact_server_passes_by_what_it_says_itself(checked, tiny_tokenizer):
    result = checked(Speculative(tiny_tokenizer))
    check = only(result)
    assert (check.passed, check.logprobs, check.identical, check.outputs) == (True, "raw", 4, 4)
    assert check.against.draws == check.law.draws >= 640
    assert check.control.draws == check.law.draws + check.bonus.draws and check.bonus.draws > 40
    assert check.against.smallest_bias < 0.15
    said = "\n".join(view.findings(result))
    assert (
        "would have been found" in said
        and f"All 4 greedy outputs are identical, {check.drafted} drafted tokens in them" in said
    )
    assert "one a request, which leaves nothing to draft" in report.text(report.of(result))


def test_a_server_that_seldom_drafts_is_asked_until_enough_was_drafted(checked, tiny_tokenizer):
    """At every eighth token it has a draft, so one answer has at most 16 drafted tokens."""
    check = only(checked(Speculative(tiny_tokenizer, every=8), draws=200))
    assert 200 <= check.against.draws < 216 and check.sampled > 2 * check.against.draws
    few = checked(Speculative(tiny_tokenizer, every=33), draws=200)
    assert only(few).against is None and "Of 1,792 sampled tokens too few were drafted" in view.findings(few)[0]


def test_tokens_that_end_inside_a_character_are_tested_too(checked, tiny_tokenizer):
    """llama-server reports no log-probabilities with them."""
    server = Speculative(tiny_tokenizer)
    server.within = 1
    assert only(checked(server, draws=200)).law.draws >= 200


@pytest.mark.parametrize("fault", FAULTS)
def test_each_way_of_verifying_wrongly_is_found(fault, checked, tiny_tokenizer):
    result = checked(
        Speculative(tiny_tokenizer, fault),
        Speculative(tiny_tokenizer, drafts=False),
        draws=1280 if fault == "bonus from drafter" else 640,
    )
    check = only(result)
    assert not check.passed and result.failed
    assert check.against.passed == (fault == "bonus from drafter")
    assert check.control.passed, "the baseline samples rightly"
    assert check.identical == check.outputs, "it is not in greedy decoding"
    assert view.headline(result).startswith("NOT lossless: llama-server: draft-simple")


@pytest.mark.parametrize("alone", [True, False])
def test_a_greedy_output_that_is_the_drafter_s_is_a_fault_and_no_tie(alone, checked, tiny_tokenizer):
    baseline = None if alone else Speculative(tiny_tokenizer, drafts=False)
    check = only(checked(Speculative(tiny_tokenizer, "greedy drafts"), baseline, draws=64))
    assert not check.passed and len(check.faults) == check.outputs == 4
    assert all(each.judged and each.near_tie.margin > 0.01 for each in check.differing)


@pytest.mark.parametrize("logprobs", ["processed", "rounded", "wrong"])
def test_what_log_probabilities_are_is_told_apart_from_what_is_sampled(logprobs, checked, tiny_tokenizer):
    exact, biased = (checked(Speculative(tiny_tokenizer, fault, logprobs)) for fault in ("", "draft's p"))
    for result, passes in ((exact, True), (biased, False)):
        check = only(result)
        assert (check.passed, check.logprobs) == (passes, logprobs)
        assert (check.law is None) == (logprobs != "processed")
        assert result.unsure(check) == (passes and logprobs == "wrong")
        assert view.LOGPROBS[logprobs] in view.findings(result)[0]


@pytest.mark.parametrize(
    ("server", "baseline", "verdict"),
    [(1.3, None, "cannot tell"), (1.3, 1.3, "pass"), (1.3, 1.0, "FAIL")],
)
def test_a_temperature_that_is_off_everywhere_is_no_fault_of_speculation(
    server, baseline, verdict, checked, tiny_tokenizer
):
    standard = Speculative(tiny_tokenizer, drafts=False, heat=baseline) if baseline else None
    result = checked(Speculative(tiny_tokenizer, heat=server), standard)
    assert view.table(result).rows[0][1] == verdict
    said = view.headline(result) + " ".join(view.findings(result))
    assert ("Cannot tell" in said) == ("A --baseline-server would tell" in said) == (verdict == "cannot tell")
    assert result.failed == (verdict == "FAIL")


def test_a_server_in_bfloat16_is_not_accused_of_a_step_of_its_logits():
    """As vLLM answered where a pass of six tokens chose another one: both its passes over one token agreed."""
    likely = 22 - np.array([0, 1, 3, 9, 12, 14, 15, 16, 17, 18, 20, 21, 21, 22, 25, 26, 28, 30, 31, 33]) / 8
    passes = dict(enumerate(likely - np.log(np.exp(likely).sum()) - 0.7))
    tie = near_tie_of(passes, passes, 0, 1)
    assert tie.margin == pytest.approx(0.125) and tie.rank == 2 and tie.tie
    assert not near_tie_of(passes, passes, 0, 9).tie, "two logits that are 18 steps apart"
    finer = {id_: logprob + 0.01 * np.sin(id_) for id_, logprob in passes.items()}
    assert not near_tie_of(finer, finer, 0, 1).tie, "in float32 it is no rounding"


def test_vllm_is_asked_in_its_own_way(checked, tiny_tokenizer):
    assert only(checked(SpeculativeVllm(tiny_tokenizer))).passed
    assert not only(checked(SpeculativeVllm(tiny_tokenizer, "draft's p"))).passed


def test_without_log_probabilities_first_words_are_compared(checked, tiny_tokenizer):
    plain = SpeculativeChat(tiny_tokenizer, drafts=False)
    exact = checked(SpeculativeChat(tiny_tokenizer), plain, draws=1200)
    check = only(exact)
    assert (check.passed, check.logprobs, check.against.draws) == (True, "none", 300)
    assert "do not differ from the baseline's" in view.findings(exact)[0]
    assert not only(checked(SpeculativeChat(tiny_tokenizer, "draft's p"), plain, draws=1200)).passed


def test_greedy_outputs_are_compared_with_the_target_of_this_process(checked, tiny_tokenizer, tmp_path):
    """The stand-in sees one token, the target all of them: they soon part, and no rounding explains it."""
    small_llama(tiny_tokenizer, initializer_range=0.3).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    pair = custom_pair(str(tmp_path), None, "ngram")
    with pytest.raises(PlaygroundError, match="reads the first prompt as 3 tokens, which are not the"):
        checked(Speculative(tiny_tokenizer), pair=pair, draws=32)
    ids = tuple(tiny_tokenizer.apply_chat_template(ASKED[0].request.messages, add_generation_prompt=True)["input_ids"])
    result = checked(Speculative(tiny_tokenizer, prompt=ids), pair=pair, draws=32)
    (differing, *_) = only(result).differing
    assert differing.judged and differing.near_tie.rounding > 0


class Dying(Speculative):
    """Where it samples more than one token."""

    def answer(self, path, body):
        return None if body.get("stream") and body["temperature"] else super().answer(path, body)


def test_bad_input_is_a_sentence(checked, tiny_tokenizer, capsys):
    with pytest.raises(PlaygroundError, match=r"gives no log-probabilities of token ids.*--baseline-server"):
        checked(Speculative(tiny_tokenizer, logprobs="none"))
    dying = Dying(tiny_tokenizer)
    with pytest.raises(PlaygroundError, match="Not one sampled answer came to its end"):
        checked(dying)
    with pytest.raises(PlaygroundError, match="another model, vocabulary or chat template"):
        checked(Speculative(tiny_tokenizer), Speculative(tiny_tokenizer, prompt=(1, 2)))
    for options, said in (
        (["--server", "http://127.0.0.1:9"], "No server answers at http://127.0.0.1:9"),
        (["--baseline-server", "http://127.0.0.1:9"], "Give both --server and --baseline-server"),
    ):
        with pytest.raises(SystemExit):
            main(["lossless", *options])
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_an_exact_server_passes_at_its_rate(checked, tiny_tokenizer):
    """Of 100 exact servers one in ten runs of this test would be called lossy, at p < 0.001."""
    servers = (Speculative(tiny_tokenizer, prompt=(40, 41, last)) for last in range(100, 200))
    assert sum(not only(checked(server, draws=320)).passed for server in servers) <= 1
