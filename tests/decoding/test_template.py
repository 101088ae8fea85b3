"""Chat templates, rendered apart: the same text as transformers', and an end to those that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from playground import child
from playground.conversation import Message, ToolCall, as_dict, read_tools
from playground.decoding import template
from playground.errors import PlaygroundError

CONVERSATION = [
    {"role": "system", "content": "Be brief & <b>kind</b>."},
    {"role": "user", "content": 'Say "Ja" to {{ messages }}.\n\tகடல் 🙂'},
    {"role": "assistant", "content": "Ja."},
    {"role": "user", "content": "\ufffd\x00 Again?"},
]
TEMPLATES = {
    "trimmed": "{%- for m in messages %}\n    {{- '[' + m.role + '] ' + m['content'] | trim }}\n{%- endfor %}",
    "json": "{{ messages | tojson(indent=2) }}{{ bos_token }}{{ eos_token }}",
    "macros": "{% macro a(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}{{ a(messages[0]) }}{{ a(messages[1]) }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "prompt": "{{ messages[-1].content }}{% if add_generation_prompt %}<|assistant|>{% endif %}{{ tools is none }}",
    "year": "{{ strftime_now('%Y') }}",
}
ENDLESS = 4 * "{% for a in range(99999) %}" + 4 * "{% endfor %}"


@pytest.fixture
def tokenizer(tiny_tokenizer, monkeypatch):
    def with_template(text: object):
        monkeypatch.setattr(tiny_tokenizer, "chat_template", text)
        return tiny_tokenizer

    return with_template


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers(tokenizer, name):
    with_template = tokenizer(TEMPLATES[name])
    expected = with_template.apply_chat_template(CONVERSATION, add_generation_prompt=True, tokenize=False)
    assert template.render(with_template, CONVERSATION) == expected


REAL = Path(__file__).parent.parent / "files" / "templates"
TOOLS = read_tools('[{"name": "weather", "description": "The weather.", "parameters": {"type": "object"}}]')
CALLED = [
    Message("user", "Weather in Oslo?"),
    Message("assistant", "", "I must look.", (ToolCall("weather", '{"city": "Oslo"}', "c1"),)),
    Message("tool", "rain", tool_call_id="c1"),
]
THINKING = {"enable_thinking"}
NAMED = {
    "Qwen-Qwen3-0.6B": THINKING,
    "Qwen3.5-4B": THINKING,
    "GLM-4.6": THINKING,
    "GLM-4.7-Flash": THINKING | {"clear_thinking"},
    "google-gemma-4-31B-it": THINKING,
    "deepseek-ai-DeepSeek-V3.1": THINKING | {"thinking"},
    "deepseek-ai-DeepSeek-V4": THINKING | {"reasoning_effort"},
    "openai-gpt-oss-120b": {"reasoning_effort", "model_identity"},
}


@pytest.mark.parametrize("path", sorted(REAL.glob("*.jinja")), ids=lambda path: path.stem)
def test_real_templates_take_tools_and_calls(tokenizer, path):
    with_template = tokenizer(path.read_text(encoding="utf-8"))
    text = template.render(with_template, list(map(as_dict, CALLED)), tools=TOOLS)
    called = text.rindex("Oslo")
    assert "weather" in text[:called] and "rain" in text[called:]


@pytest.mark.parametrize("name", NAMED)
def test_the_arguments_that_a_real_template_reads_are_found_in_it(tokenizer, name):
    with_template = tokenizer((REAL / f"{name}.jinja").read_text(encoding="utf-8"))
    found = template.names(with_template)
    assert NAMED[name] <= set(found) and not {"messages", "content", "message", "ns", "loop"} & set(found)
    with pytest.raises(PlaygroundError, match=r"enable_thinkin\..*(enable_thinking|effort)"):
        template.render(with_template, CONVERSATION[1:], arguments={"enable_thinkin": True})


def test_an_argument_reaches_a_real_template(tokenizer):
    with_template = tokenizer((REAL / "Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8"))
    texts = [
        template.render(with_template, CONVERSATION[1:2], arguments={"enable_thinking": on}) for on in (True, False)
    ]
    assert texts[1] == texts[0] + "<think>\n\n</think>\n\n"


def test_a_template_that_wants_arguments_as_text_gets_them_so(tokenizer):
    text = "{% for m in messages %}{% for c in m.tool_calls %}{{ 'f ' + c.function.arguments }}{% endfor %}{% endfor %}"
    assert template.render(tokenizer(text), list(map(as_dict, CALLED))) == 'f {"city": "Oslo"}'


def test_the_end_may_be_that_of_the_last_message(tokenizer):
    assert template.render(tokenizer(TEMPLATES["prompt"]), CONVERSATION, open_end=False).endswith("Again?True")


def test_a_template_that_refuses_is_quoted(tokenizer):
    with pytest.raises(PlaygroundError, match=r"refuses .*\(no system"):
        template.render(tokenizer("{{ raise_exception('no system here') }}"), CONVERSATION)


@pytest.mark.parametrize("text", ["{% for m in", "{{ ''.__class__.__mro__ }}", "{{ 1 // 0 }}", "{{ undefined.x }}"])
def test_so_is_one_that_is_broken_or_reaches_out_of_its_sandbox(tokenizer, text):
    with pytest.raises(PlaygroundError, match="refuses"):
        template.render(tokenizer(text), CONVERSATION)


def test_several_templates_need_a_default(tokenizer):
    with pytest.raises(PlaygroundError, match="chat templates"):
        template.render(tokenizer({"tool_use": "", "rag": ""}), CONVERSATION)


@pytest.mark.parametrize(
    ("text", "limit", "value", "sentence"),
    [
        (ENDLESS, "LIMIT_S", 0.2, "within 0 s"),
        ("{{ 'x' * 10**6 }}", "LIMIT", 100_000, "100,000 characters"),
    ],
)
def test_one_without_an_end_is_ended_and_the_next_renders(tokenizer, monkeypatch, text, limit, value, sentence):
    template.render(tokenizer(TEMPLATES["year"]), CONVERSATION)  # the process runs: only the template takes time
    monkeypatch.setattr(template, limit, value)
    with pytest.raises(PlaygroundError, match=sentence):
        template.render(tokenizer(text), CONVERSATION)
    monkeypatch.undo()
    assert template.render(tokenizer("{{ messages[0].content }}!"), CONVERSATION).endswith("!")


def test_it_finds_nothing_of_our_environment(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    process = child.started(template.SCRIPT)
    with open(f"/proc/{process.pid}/environ", encoding="utf-8") as file:
        assert "secret" not in file.read()
    process.kill()
    process.communicate()
