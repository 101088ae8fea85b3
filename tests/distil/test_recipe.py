"""The whole recipe on a tiny target: acceptance rises, a stop is made up for, and what comes out drafts exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from playground.backends.local import LocalBackend
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.mtp import MtpBranches
from playground.decoding.runners.eager import EagerRunner
from playground.errors import PlaygroundError
from playground.experiments.compare import run
from playground.experiments.events import Watch
from playground.lane import LOCAL, Request, assisted_lane, standard_lane
from playground.models.networks.mtp import MtpLayer
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground_distil import recipe
from playground_distil import train as training
from playground_distil.data import batch_of, load_answers
from playground_distil.recipe import train_drafter
from playground_distil.students import MtpStudent
from playground_distil.train import Plan
from tests.decoding.fakes import GREEDY
from tests.selection import selected
from tests.tiny import small_llama

PLAN = Plan(tokens=1_000, batch=500, learning_rate=5e-3, evaluations=2)
# An assistant, which has all the target's layers, takes the longest for a token and needs the fewest.
ENOUGH = {"mtp": 12_000, "heads": 12_000, "assistant": 2_000}
KINDS = tuple(ENOUGH)  # the others need a deeper target: tests/distil/test_published.py


@pytest.fixture(scope="module", autouse=True)
def small_assistants():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "ASSISTANT", recipe.ASSISTANT | dict(intermediate_size=96, num_hidden_layers=2))
        yield


@pytest.fixture(scope="module")
def written(target, work, tmp_path_factory):
    """A drafter of a kind after so many tokens, with its held-out figures. Without a number: the MTP layer after a few
    steps, the others, which would need more, as they are before the first."""
    out = tmp_path_factory.mktemp("drafters")

    @cache
    def drafter(kind, tokens=None):
        plan = replace(PLAN, tokens=(PLAN.tokens if kind == "mtp" else 0) if tokens is None else tokens)
        folder = out / str(plan.tokens) / kind
        return folder, train_drafter(kind, target, work, folder, plan, vocabulary=200)

    return drafter


# After which a draft is accepted now and then: a training from nothing takes seconds.
LEARNED = selected([("mtp", PLAN.tokens), ("heads", 6_000), ("assistant", 3_000)], [("mtp", PLAN.tokens)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_acceptance_rises(target, work, tmp_path, kind):
    plan = replace(PLAN, tokens=ENOUGH[kind])
    log = train_drafter(kind, target, work_with(work, tmp_path), tmp_path / "out", plan, vocabulary=200)
    first, last = log[0]["accepted"][0], log[-1]["accepted"][0]
    assert last > 0.3
    assert last > first


@pytest.mark.parametrize(("kind", "tokens"), LEARNED)
def test_what_was_trained_is_loaded_drafts_and_changes_nothing(target, written, kind, tokens, tmp_path):
    target.model.save_pretrained(tmp_path / "tiny")
    target.tokenizer.save_pretrained(tmp_path / "tiny")
    folder, _ = written(kind, tokens)
    pair = custom_pair(str(tmp_path / "tiny"), str(folder))
    assert pair.drafter == kind
    store, accepted = ModelStore(), 0
    for prompt in ("A drafter", "The waves count"):
        request = Request(prompt, chat_template=False, max_new_tokens=20)
        backends = {LOCAL: LocalBackend(store, pair, "float32", "cpu")}
        lanes = [standard_lane(pair), assisted_lane(pair, kind, 3)]
        comparison = run(lanes, request, backends, Watch())
        standard, assisted = ([t.id for r in lane.rounds for t in r.tokens] for lane in comparison.lanes)
        assert standard == assisted
        drafted = [token for round_ in comparison.lanes[1].rounds for token in round_.drafted]
        accepted += sum(token.decision == "accepted" for token in drafted)
    assert accepted > 0


def test_a_drafter_for_another_target_is_refused_with_what_differs(written, tiny_folder, tmp_path, tiny_llama):
    folder, _ = written("mtp")
    config = json.loads((folder / "config.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (other / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    pair = custom_pair(str(tiny_folder), str(other))
    with pytest.raises(PlaygroundError, match=r"64.* 32\b"):
        ModelStore().get(pair, drafter="mtp", progress=lambda step: None)
    (other / "model.safetensors").write_bytes(b"nothing")
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(PlaygroundError, match=r"No trained .*'other'"):
        ModelStore().get(pair, drafter="mtp", progress=lambda step: None)


def test_the_assistant_is_a_model_that_generate_takes(target, written):
    folder, _ = written("assistant")
    assistant = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7]])
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    plain = target.model.generate(ids, **options)
    assert torch.equal(target.model.generate(ids, assistant_model=assistant, **options), plain)


def test_every_file_of_a_drafter_has_its_card(written):
    for kind in KINDS:
        folder, log = written(kind)
        card = (folder / "README.md").read_text()
        assert f"{log[-1]['accepted'][0]:.3f}" in card
        assert kind in card


def test_training_goes_on_where_it_was_stopped(target, work, tmp_path, monkeypatch):
    answers, held_out = load_answers(work)
    plan = Plan(tokens=600, batch=100, evaluations=3)

    def student():
        torch.manual_seed(0)
        layer = MtpLayer(target.model, torch.arange(200))
        layer.start_from(target.model)
        return MtpStudent(layer, 2)

    class Stopped(Exception):
        pass

    seen = []

    def stop_at_the_third(*arguments):
        seen.append(1)
        if len(seen) == 3:
            raise Stopped
        return evaluate(*arguments)

    evaluate = training.evaluate
    monkeypatch.setattr(training, "evaluate", stop_at_the_third)
    stopped = student()
    with pytest.raises(Stopped):
        training.train(stopped, answers, held_out, plan, tmp_path / "checkpoint")
    monkeypatch.setattr(training, "evaluate", evaluate)
    log = training.train(student(), answers, held_out, plan, tmp_path / "checkpoint")
    assert [line["tokens"] // 200 for line in log] == [1, 2, 3]


def test_a_run_that_began_elsewhere_does_not_go_on_from_anothers_checkpoint(
    target, work, written, tmp_path, monkeypatch
):
    (folder, log), checkpoints, plan = written("mtp"), [], Plan(tokens=100, batch=100, evaluations=1)
    monkeypatch.setattr(recipe, "train", lambda *arguments: checkpoints.append(arguments[-1]) or log)
    for name in ("one", "two"):  # folders of the same name
        (tmp_path / name / "mtp").mkdir(parents=True)
        for file in folder.iterdir():
            (tmp_path / name / "mtp" / file.name).write_bytes(file.read_bytes())
        begun = [f"{tmp_path}/{name}/mtp"]
        train_drafter("mtp", target, work, tmp_path / "out", plan, vocabulary=200, start_from=begun)
    for other in (plan, replace(plan, seed=1)):
        train_drafter("mtp", target, work, tmp_path / "out", other, vocabulary=200)
    assert len(set(checkpoints)) == 4


def test_weights_that_have_learned_are_kept_and_take_another_draft_vocabulary(target, work, written, tmp_path):
    folder, _ = written("mtp")
    train_drafter("mtp", target, work, tmp_path, PLAN, vocabulary=100)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert json.loads((tmp_path / "config.json").read_text())["draft_vocabulary"] == len(after.pop("draft_ids")) == 100
    assert len(before.pop("draft_ids")) == 200
    assert all(torch.equal(before[name], weight) for name, weight in after.items())


@pytest.mark.parametrize(("kind", "tokens"), LEARNED)
def test_a_drafter_that_has_learned_is_gone_on_from(target, work, written, tmp_path, kind, tokens):
    folder, scratch = written(kind, tokens)
    if kind == "assistant":
        target.tokenizer.save_pretrained(folder)
    plan = Plan(tokens=1_000, batch=512, learning_rate=1e-4, evaluations=1)
    log = train_drafter(kind, target, work_with(work, tmp_path), tmp_path / "out", plan, start_from=[str(folder)])
    assert log[0]["accepted"][0] > scratch[0]["accepted"][0]
    assert f"Started from: {kind}" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("kind", ["mtp", pytest.param("assistant", marks=pytest.mark.slow)])
def test_several_are_gone_on_from_by_the_mean_of_their_weights(target, work, written, tmp_path, kind):
    first, _ = written(kind)
    target.tokenizer.save_pretrained(first)
    answers = work_with(work, tmp_path)
    train_drafter(kind, target, answers, tmp_path / "second", Plan(tokens=500, evaluations=1, seed=1), vocabulary=200)
    both = [str(first), str(tmp_path / "second")]
    out = tmp_path / "mean"
    log = train_drafter(kind, target, answers, out, Plan(tokens=0), vocabulary=200, start_from=both)
    assert log[0]["tokens"] == 0
    one, other, mean = (load_file(Path(folder) / "model.safetensors") for folder in (*both, out))
    names = {name for name, weight in mean.items() if weight.is_floating_point()}
    assert all(torch.allclose(mean[n].float(), (one[n] + other[n]).float() / 2, rtol=0.01, atol=1e-3) for n in names)
    assert any(not torch.equal(mean[name], one[name]) for name in names)


def test_what_is_of_another_kind_is_not_gone_on_from(target, work, written, tmp_path):
    for kind, other in (("mtp", "heads"), ("heads", "mtp"), ("mtp", "nowhere"), ("assistant", "mtp")):
        start = str(written(other)[0] if other in KINDS else tmp_path / other)
        with pytest.raises(PlaygroundError, match=f"the kind {kind}"):
            train_drafter(kind, target, work_with(work, tmp_path), tmp_path / "out", PLAN, start_from=[start])


def test_assistants_of_different_shapes_have_no_mean(target, work, written, tmp_path, tiny_tokenizer):
    first, _ = written("assistant")
    target.tokenizer.save_pretrained(first)
    small_llama(tiny_tokenizer).save_pretrained(tmp_path / "other")
    tiny_tokenizer.save_pretrained(tmp_path / "other")
    both = [str(first), str(tmp_path / "other")]
    with pytest.raises(PlaygroundError, match="different shapes"):
        train_drafter("assistant", target, work_with(work, tmp_path), tmp_path / "out", PLAN, start_from=both)


def work_with(work: Path, tmp_path: Path) -> Path:
    """The answers of `work`, without its checkpoints."""
    folder = tmp_path / "work"
    folder.mkdir(exist_ok=True)
    for path in work.glob("answers-*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_too_few_answers_are_named(target, tmp_path):
    with pytest.raises(PlaygroundError, match="0 shards"):
        train_drafter("mtp", target, tmp_path, tmp_path / "out", PLAN)


def test_what_training_calls_a_standing_draft_stands_in_decoding(target, work):
    """The layer learns from drafts that start at every place at once. Each is the draft that decoding makes there."""
    steps = 3
    torch.manual_seed(1)
    layer = MtpLayer(target.model, torch.arange(target.model.config.vocab_size))
    layer.start_from(target.model)
    student = MtpStudent(layer, steps)
    _, held_out = load_answers(work)
    answer = max(held_out, key=lambda answer: len(answer.ids) - answer.prompt_length)
    with torch.no_grad():
        agreed = student.lesson(batch_of([answer])).agreed
    ids = answer.ids.tolist()
    greedy = [*ids[:1], *answer.choices[:-1, 0].tolist()]  # the target's choice for each place
    for i in range(len(agreed)):
        known = answer.prompt_length + i  # tokens before the draft
        cached = EagerRunner(target.model)
        drafter = ChainDrafter(MtpBranches(layer, cached), layer.vocab_size, ())
        cached.forward(ids[: known - 1], keep=1)
        drafter.commit(known - 1)
        draft = drafter.propose(ids[:known], steps, 0.0, GREEDY).ids
        length = next((s for s in range(steps) if draft[s] != greedy[known + s]), steps)
        # A draft goes on from its own tokens, training from the text's: they part where the text is not the choice.
        if ids[known : known + length] == draft[:length]:
            assert int(agreed[i].int().cumprod(0).sum()) == length
