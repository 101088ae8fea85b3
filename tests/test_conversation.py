"""Conversations, tools and template arguments: read in the forms that people have, or refused in a sentence."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from playground import conversation, validation
from playground.conversation import Message, ToolCall
from playground.errors import PlaygroundError
from playground.lane import Request, read_request

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Oslo?"}]},
    {"role": "assistant", "content": None, "reasoning_content": "I must look.", "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "c1"},
]
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def of(messages: object, prompt: str = "", **answer: object) -> Request:
    return read_request(prompt, json.dumps(messages), answer)


def test_a_conversation_goes_on_from_a_tool_s_answer():
    request = of(CHAT)
    assert (request.prompt, request.system, request.question) == ("", "Be brief.", "rain")
    assert [turn.role for turn in request.turns] == ["user", "assistant", "tool"]
    assert request.turns[0].content == "Weather\n\nin Oslo?"
    assert request.turns[1] == Message(
        "assistant", "", "I must look.", (ToolCall("weather", '{"city": "Oslo"}', "c1"),)
    )
    assert request.earlier == request.turns[:2]


def test_templates_get_a_call_s_arguments_as_an_object_and_servers_as_text():
    request = of(CHAT)
    (call,) = request.as_messages(request.turns)[2]["tool_calls"]
    assert call == {**CALL, "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    assert request.messages[2]["tool_calls"] == [CALL]


def test_a_request_is_the_same_after_json():
    request = of(CHAT, tools=json.dumps([TOOL]), template="enable_thinking=false")
    assert validation.read(Request, json.loads(json.dumps(asdict(request)))) == request
    assert read_request(request.prompt, request.history_json, {"system": request.system}).turns == request.turns


def test_a_prompt_follows_the_conversation():
    request = of([*CHAT, {"role": "assistant", "content": "It rains."}], "And tomorrow?")
    assert [turn.role for turn in request.turns] == ["user", "assistant", "tool", "assistant", "user"]
    assert len(request.earlier) == 4


@pytest.mark.parametrize(
    ("messages", "prompt", "sentence"),
    [
        ([*CHAT, {"role": "assistant", "content": "It rains."}], "", "ends with a message of the role assistant"),
        (CHAT[:1], "", "The conversation is empty"),
        (CHAT[:2], "And Rome?", "waits for an answer, and a prompt follows"),
        ([CHAT[1], CHAT[3]], "", "Message 2 is a tool's answer, and no tool was called"),
        ([{"role": "robot", "content": "x"}], "", "Message 1 has the role 'robot'"),
        (["x"], "", "Message 1 should be an object"),
        ([{"role": "user", "content": ""}], "", "Message 1, of the role user, is empty"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "", "something other than text"),
        ([{"role": "user", "content": "\ud800"}], "", "half of a surrogate pair"),
        ([CHAT[1], {"role": "assistant", "tool_calls": [{"function": {}}]}], "x", "without the name of a function"),
        (
            [CHAT[1], {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "x",
            "the arguments of the call of f are not a JSON object",
        ),
        ({"messages": []}, "", "should be a list of messages"),
    ],
)
def test_what_is_no_conversation_is_refused_in_a_sentence(messages, prompt, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        of(messages, prompt)


def test_two_system_prompts_are_refused():
    with pytest.raises(PlaygroundError, match="two system"):
        of(CHAT, system="Be kind.")


def test_text_that_is_no_json_is_refused():
    with pytest.raises(PlaygroundError, match="not JSON"):
        read_request("", "[{", {})


def test_tools_come_in_openai_s_form_or_as_functions_or_with_the_messages():
    wrapped = [{"type": "function", "function": TOOL}]
    for form in (wrapped, [TOOL], {"tools": wrapped}, TOOL):
        assert conversation.read_tools(json.dumps(form)) == wrapped
    assert conversation.read_tools(of({"messages": CHAT, "tools": [TOOL]}).tools) == wrapped
    assert conversation.read_tools("") == []


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        ("[{", "not JSON"),
        ('["weather"]', "Tool 1 is"),
        ('[{"name": "f", "parameters": ["city"]}]', "Tool 1, f, "),
        ('[{"name": "f", "parameters": {"type": "string"}}]', "an object"),
        ('[{"name": "f", "parameters": {"properties": {"city": "string"}}}]', "an object"),
        ("3", "JSON list"),
    ],
)
def test_a_tool_that_is_no_schema_is_refused_in_a_sentence(tools, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        Request("x", tools=tools)


def test_template_arguments_are_read_as_json_where_they_are():
    text = "enable_thinking=false reasoning_effort=high\nbudget=3 date='24 November'"
    found = {"enable_thinking": False, "reasoning_effort": "high", "budget": 3, "date": "24 November"}
    assert conversation.read_arguments(text) == found
    assert conversation.read_arguments(json.dumps(found)) == found
    assert conversation.read_arguments("") == {}


@pytest.mark.parametrize("text", ["enable_thinking", "=x", "a b=c", "a='x"])
def test_template_arguments_that_are_none_are_refused(text):
    with pytest.raises(PlaygroundError, match="template argument"):
        Request("x", template=text)
