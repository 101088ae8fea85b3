"""What strangers may do, and who counts as one."""

from __future__ import annotations

import dataclasses

import pytest

from playground.errors import PlaygroundError
from playground.hosting.access import FOR_VISITORS, Access, access_for, addresses_of, strangers_can_reach, visitor
from playground.lane import Request

PUBLIC = access_for(True)


@pytest.mark.parametrize(
    ("host", "share", "space", "reached"),
    [
        ("127.0.0.1", False, False, False),
        ("localhost", False, False, False),
        ("[::1]", False, False, False),
        ("0.0.0.0", False, False, True),
        ("::", False, False, True),
        ("192.168.1.5", False, False, True),
        ("127.0.0.1", True, False, True),
        ("127.0.0.1", False, True, True),
    ],
)
def test_strangers_reach_whatever_is_not_loopback_alone(monkeypatch, host, share, space, reached):
    monkeypatch.delenv("SPACE_ID", raising=False)
    if space:
        monkeypatch.setenv("SPACE_ID", "owner/space")
    assert strangers_can_reach(addresses_of(host), share) == reached


@pytest.mark.parametrize(
    ("host", "taken"),
    [
        *(
            (it, True)
            for it in ("localhost:7860", "LOCALHOST", "localhost.:80", "127.0.0.1:7860", "[::1]:7860", "[::1]")
        ),
        *((it, True) for it in ("a.localhost:7860", "0.0.0.0:7860", "10.1.2.3", "My-Box.lan:7860", "my-box.lan.")),
        *(
            (it, False)
            for it in ("evil.com", "evil.com:7860", "localhost.evil.com", "127.0.0.1.evil.com", "xlocalhost")
        ),
        *(
            (it, False)
            for it in ("", "localhost@evil.com", "evil.com/localhost", "[::1].evil.com", "my-box.lan.evil.com")
        ),
    ],
)
def test_a_name_that_another_site_can_make_lead_here_is_not_taken(host, taken, monkeypatch):
    monkeypatch.delenv("SPACE_ID", raising=False)
    named = ["my-box.lan:7860", "", "127.0.0.1"]
    assert access_for(False, hosts=named).takes_host(host) == access_for(True, hosts=named).takes_host(host) == taken
    assert PUBLIC.takes_host(host), "a proxy of any name may be before it"
    monkeypatch.setenv("SPACE_ID", "owner/space")
    assert access_for(False).takes_host(host)


@pytest.mark.parametrize(
    ("access", "host", "forwarded", "taken"),
    [
        (Access(), "localhost:7860", "evil.com", False),
        (Access(), "localhost:7860", "localhost:80", True),
        (Access(hosts=("my.org",)), "127.0.0.1:7860", "my.org", True),
        (PUBLIC, "127.0.0.1:7860", "my.org", True),  # a proxy that passes no name on
        (PUBLIC, "my.org", "evil.com", False),  # a client's, through a proxy that does
        (access_for(True, hosts=["my.org"]), "127.0.0.1:7860", "evil.com", False),
    ],
)
def test_links_name_no_host_that_a_client_made_up(access, host, forwarded, taken):
    assert access.takes_forwarded_host(forwarded, host) == taken


def test_a_host_that_does_not_exist_is_named():
    with pytest.raises(PlaygroundError, match=r"no address 'no\.such"):
        addresses_of("no.such.host.invalid")


def test_on_one_s_own_machine_any_model_may_be_typed():
    assert [Access().typed(name) for name in (" a/b ", "/a/folder", "4", "")] == ["a/b", "/a/folder", "4", ""]
    assert Access().typing == ""


@pytest.mark.parametrize(
    ("models", "name", "found"),
    [
        (("a/b",), "", ""),
        (("a/b",), "4", "4"),
        (("a/b", "/srv/model"), "/srv/model", "/srv/model"),
        (("a/b", "/srv/model/"), "model", "/srv/model/"),
        (("any",), "a/b", "hub:a/b"),
        (("any",), "docs/help", "hub:docs/help"),  # also where this is a folder
    ],
)
def test_strangers_may_type_what_is_allowed(models, name, found):
    assert access_for(True, models).typed(name) == found


def test_the_names_that_can_be_typed_are_said_without_their_paths():
    access = access_for(True, ["a/b", "/srv/model"])
    assert "a/b, model." in access.typing
    assert access.without_secrets(access.typing) == access.typing


@pytest.mark.parametrize(
    ("models", "name"),
    [
        ((), "a/b"),
        ((), ""),
        (("a/b",), "a/c"),
        *(
            (("any",), name)
            for name in ("/etc", "../x", "./x", "~/x", "a/../b", "a/.b", "a", "a/b/c", "hub:a/b", "C:\\x")
        ),
    ],
)
def test_all_else_is_refused_with_one_sentence_whether_or_not_it_exists(models, name):
    access = access_for(True, models)
    with pytest.raises(PlaygroundError) as refusal:
        access.typed(name)
    assert str(refusal.value) == access.typing and "this server" in access.typing


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (Request("x" * 20_001), "takes 20,000"),
        (Request("x", system="y" * 20_000), "20,001 characters"),
        (Request("x", max_new_tokens=1025), "1,024 .* 1,025"),
    ],
)
def test_a_request_has_limits(request_, sentence):
    Access().check_request(request_)
    with pytest.raises(PlaygroundError, match=sentence):
        PUBLIC.check_request(request_)


def test_strangers_share_no_cache_of_what_was_asked():
    assert not PUBLIC.alone(Request("x")).prefix_cache and Access().alone(Request("x")).prefix_cache


def test_so_has_the_number_of_runs():
    PUBLIC.admit(FOR_VISITORS.runs_each - 1, FOR_VISITORS.runs - 1)
    with pytest.raises(PlaygroundError, match="4 of your"):
        PUBLIC.admit(4, 10)
    with pytest.raises(PlaygroundError, match="200 runs"):
        PUBLIC.admit(0, 200)


def test_a_visitor_is_an_address_on_the_internet_or_else_a_session():
    assert visitor("8.8.8.8", "session") == "8.8.8.8"
    assert [visitor(address, "session") for address in ("127.0.0.1", "10.1.2.3", "", "testclient")] == ["session"] * 4


def test_every_limit_of_strangers_is_lower_than_without():
    limits = dataclasses.asdict(FOR_VISITORS)
    assert all(limits[name] < usual for name, usual in dataclasses.asdict(Access().limits).items())


def test_messages_for_strangers_hold_no_path_host_name_or_secret(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "hf_abcdefgh")
    monkeypatch.setattr("socket.gethostname", lambda: "web-17")
    text = "Delete /home/ann/.cache/models--a/x.gguf (web-17, C:\\Users\\ann): hf_abcdefgh, ~/models. "
    text += "See https://a.b/c, owner/name, \\\\host\\share\\a.gguf."
    assert (
        PUBLIC.without_secrets(text)
        == "Delete …/x.gguf (…, …/ann): …, …/models. See https://a.b/c, owner/name, …/a.gguf."
    )
    assert Access().without_secrets(text) == text


def test_messages_for_strangers_keep_what_is_no_path():
    with pytest.raises(PlaygroundError) as refused:
        Request("x", stop_strings="\\x")
    for text in (str(refused.value), "Verification must be one of token, block; it is '<b>x</b>'."):
        assert PUBLIC.without_secrets(text) == text
