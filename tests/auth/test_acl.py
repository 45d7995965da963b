"""ACL files: what a line allows, to whom, and that equal permissions are one object."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.auth.acl import Acl, AclRights, covers, overlap
from hubbub.core.caches import Caches
from hubbub.core.rights import BIND, PUBLISH, RECEIVE, SUBSCRIBE
from hubbub.core.topics import is_filter, matches
from hubbub.errors import SettingError

FILE = """\
# whoever has no name
topic read public/#

user ann
topic house/#
topic deny house/safe/+
topic write out/ann
topic read $SYS/#

user bob builder
topic readwrite site/+/plan

pattern write devices/%c/state
pattern read devices/%c/set
pattern homes/%u/#
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "acl"
    path.write_text(FILE)
    return path


@pytest.fixture
def acl(file: Path) -> Acl:
    return Acl(file)


@pytest.mark.parametrize(
    ("user", "client", "name", "rights"),
    [
        ("", "x", "public/news", "r"),
        ("", "x", "house/door", ""),
        ("", "x", "devices/x/state", "w"),
        ("", "x", "devices/y/state", ""),
        ("", "x", "homes//door", ""),
        ("ann", "x", "public/news", ""),
        ("ann", "x", "house", "rw"),
        ("ann", "x", "house/door", "rw"),
        ("ann", "x", "house/safe/key", ""),
        ("ann", "x", "out/ann", "w"),
        ("ann", "x", "$SYS/broker/uptime", "r"),
        ("ann", "x", "homes/ann/door", "rw"),
        ("ann", "x", "homes/bob/door", ""),
        ("bob builder", "x", "site/1/plan", "rw"),
        ("cid", "x", "devices/x/set", "r"),
        ("cid", "+", "devices/+/set", ""),
        ("#", "x", "homes/cid/door", ""),
        ("cid", "x", "$SYS/broker/uptime", ""),
    ],
)
def test_who_may_do_what(acl: Acl, user: str, client: str, name: str, rights: str) -> None:
    found = acl.rights(user, client)
    assert "r" * found.may(RECEIVE, name) + "w" * found.may(PUBLISH, name) == rights


@pytest.mark.parametrize(
    ("topic_filter", "subscribe", "bind"),
    [
        ("house/door", True, True),
        ("house/+", True, True),
        ("house/#", True, False),  # the safe is inside
        ("house/safe/+", False, False),
        ("house/safe/key", False, False),
        ("#", True, False),
        ("+/door", True, False),
        ("out/ann", False, False),
        ("$SYS/#", True, True),
        ("$SYS/+", True, True),
        ("elsewhere/#", False, False),
        ("$client/self", True, False),
    ],
)
def test_subscriptions(acl: Acl, topic_filter: str, subscribe: bool, bind: bool) -> None:
    ann = acl.rights("ann", "x")
    assert (ann.may(SUBSCRIBE, topic_filter), ann.may(BIND, topic_filter)) == (subscribe, bind)


def test_what_is_published_to_a_client_it_may_receive(acl: Acl) -> None:
    assert acl.rights("ann", "x").may(RECEIVE, "$client/4711")
    assert not acl.rights("ann", "x").may(PUBLISH, "$client/4711")


@pytest.mark.parametrize("client", ["plain", "a+b", "+", "#", "a/#"])
def test_no_client_id_escapes_a_refusal(tmp_path: Path, client: str) -> None:
    file = tmp_path / "acl"
    file.write_text(
        "user ann\ntopic #\ntopic $queue/service\npattern deny $queue/service\n"
        "pattern deny private/%c/#\npattern read news\npattern devices/%c/#\n"
        "user eve\n"
    )
    ann, eve = Acl(file).rights("ann", client), Acl(file).rights("eve", client)
    assert ann.may(PUBLISH, "$queue/service"), "her own rules come first"
    assert not eve.may(PUBLISH, "$queue/service") and "deny" in eve.decided_by(
        PUBLISH, "$queue/service"
    )
    assert "deny" in eve.decided_by(PUBLISH, f"private/{client}/x"), "what is its own"
    assert eve.may(RECEIVE, "news"), "this line asks nobody's name"
    assert not eve.may(RECEIVE, "devices/other/x")
    assert eve.may(RECEIVE, "devices/plain/x") == (client == "plain")


def test_a_name_that_is_a_wildcard_is_refused_more(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("pattern deny private/%c/x\npattern #\n")
    rights = Acl(tmp_path / "acl").rights("", "+")
    assert not rights.may(PUBLISH, "private/anybody/x") and rights.may(PUBLISH, "private/a/y")


def test_equal_permissions_are_one_object(tmp_path: Path) -> None:
    file = tmp_path / "acl"
    file.write_text("user ann\ntopic a\npattern read b/#\n")
    acl = Acl(file)
    assert acl.rights("bob", "1") is acl.rights("cid", "2")
    assert acl.rights("ann", "1") is acl.rights("ann", "2")
    assert acl.rights("ann", "1") is not acl.rights("bob", "1")
    assert acl.rights("", "1") is not acl.rights("bob", "1")


def test_rights_that_nobody_has_are_forgotten(acl: Acl) -> None:
    kept = [acl.rights("u", str(number)) for number in range(100)]
    assert len(acl._given) == 100
    del kept
    gc.collect()
    assert not acl._given


def test_rights_follow_the_file(acl: Acl, file: Path) -> None:
    ann, anonymous = acl.rights("ann", "x"), acl.rights("", "x")
    file.write_text("topic read news\nuser ann\ntopic read a\nuser cid\ntopic c\npattern x/%u\n")
    acl.read()
    assert ann.may(RECEIVE, "a") and not ann.may(RECEIVE, "house/door")
    assert anonymous.may(RECEIVE, "news") and not anonymous.may(RECEIVE, "public/x")
    file.write_text("pattern x/%u\n")
    acl.read()
    assert not ann.may(RECEIVE, "a"), "a section that is gone allows nothing"


@pytest.mark.parametrize(
    "line",
    ["topic", "topics a", "user", "topic wrote a", "topic a b", "topic read a/#/b", "x", "pattern"],
)
def test_a_line_that_says_nothing_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "acl"
    file.write_text(f"\n# two\n{line}\n")
    with pytest.raises(SettingError, match="acl:3: "):
        Acl(file)


def test_a_damaged_file_leaves_the_old_rules(acl: Acl, file: Path) -> None:
    ann = acl.rights("ann", "x")
    file.write_text("nonsense")
    with pytest.raises(SettingError):
        acl.read()
    assert ann.may(PUBLISH, "house/door")
    with pytest.raises(SettingError, match="cannot read the permissions"):
        Acl(file.parent / "none")


levels = st.lists(st.sampled_from(["a", "b", "$x", ""]), min_size=1, max_size=4)
names = levels.map("/".join).filter(bool)
filters = (
    st.lists(st.sampled_from(["a", "b", "$x", "", "+", "#"]), min_size=1, max_size=4)
    .map("/".join)
    .filter(is_filter)
)


@given(filters, filters, names)
def test_covers_and_overlap_mean_what_they_say(one: str, other: str, name: str) -> None:
    if matches(other, name):
        assert not covers(one, other) or matches(one, name)
        assert not matches(one, name) or overlap(one, other)
    assert overlap(one, other) == overlap(other, one)
    assert not covers(one, other) or overlap(one, other)


@given(filters)
def test_a_filter_covers_itself(one: str) -> None:
    assert covers(one, one) and overlap(one, one)


@given(names)
def test_a_literal_filter_is_a_name(name: str) -> None:
    rights = AclRights([], Caches(10))
    assert not rights.may(PUBLISH, name)
    assert covers("#", name) == (not name.startswith("$"))


def test_long_names_weigh_as_much_as_they_are_long() -> None:
    """A hundred thousand of 64 KiB would be gigabytes."""
    caches = Caches(300)
    rights = AclRights([], caches)
    for number in range(10):
        rights.may(PUBLISH, "a" * 65_000 + str(number))
    assert len(caches) <= 300 and len(rights._verdicts) == 2


def test_what_was_decided_for_somebody_goes_with_it() -> None:
    """There may be one for each client that ever came."""
    caches = Caches(10)
    for number in range(5):
        rights = AclRights([], caches)
        assert not rights.may(PUBLISH, f"a/{number}") and len(caches) == 1
        del rights
        gc.collect()
        assert len(caches) == 0
