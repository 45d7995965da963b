"""Settings: the file and the code agree, and every refusal says what to do."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from hubbub.config.settings import (
    Address,
    Bridge,
    Listener,
    Settings,
    Tls,
    parse_address,
    parse_bridge_topic,
)
from hubbub.config.sources import load, manual
from hubbub.core import limits
from hubbub.errors import SettingError

ROOT = Path(__file__).parents[2]


def test_the_file_is_what_the_code_says() -> None:
    text = (ROOT / "hubbub.toml").read_text("utf-8")
    assert text == manual(), "run: hubbub config > hubbub.toml"


def test_the_file_as_it_is_changes_nothing() -> None:
    assert load(ROOT / "hubbub.toml") == Settings()


def test_the_file_with_all_settings_uncommented_is_the_default_hub() -> None:
    lines = manual().splitlines()
    settings = [re.sub(r"^# ([\w.]+ = |\[\[)", r"\1", line) for line in lines]
    tree = tomllib.loads("\n".join(settings))
    assert tree.pop("allow_anonymous") is True
    (listener,) = tree.pop("listener")
    assert set(listener) == set(Listener.__struct_fields__)
    assert set(listener["tls"]) == set(Tls.__struct_fields__)
    (bridge,) = tree.pop("bridge")
    assert set(bridge) == set(Bridge.__struct_fields__)
    assert [parse_bridge_topic(text).qos for text in bridge["topics"]] == [1, 1]
    assert msgspec.convert(tree, Settings) == Settings()
    tables = {"allow_anonymous", "listener", "bridge"}
    assert set(tree) == set(Settings.__struct_fields__) - tables


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("a/#", ("a/#", True, False, 0, "", "")),
        ("a in", ("a", False, True, 0, "", "")),
        ("a both 2 here/ there/", ("a", True, True, 2, "here/", "there/")),
        ('"" out 1 here/a there/b', ("", True, False, 1, "here/a", "there/b")),
        ("'two words' out 1 \"\" x/", ("two words", True, False, 1, "", "x/")),
    ],
)
def test_topics_of_a_bridge(text: str, topic: tuple[object, ...]) -> None:
    assert parse_bridge_topic(text) == topic


@pytest.mark.parametrize("text", ["", "a up", "a out 3", "a out 1 b c d", "'a"])
def test_topics_that_are_none(text: str) -> None:
    with pytest.raises(SettingError, match="bridge.topics"):
        parse_bridge_topic(text)


def test_defaults_are_the_bounds_of_the_core() -> None:
    defaults = Settings()
    assert defaults.limits.message_bytes == limits.MESSAGE_BYTES
    assert defaults.limits.delayed_messages == limits.DELAYED_MESSAGES
    assert defaults.session.inflight == limits.INFLIGHT
    assert defaults.session.backlog_messages == limits.BACKLOG_MESSAGES
    assert defaults.session.backlog_bytes == limits.BACKLOG_BYTES
    assert defaults.smq.max_topics == limits.TOPIC_IDS
    assert defaults.rpc.reply_ttl == limits.REPLY_SECONDS
    assert defaults.rpc.max_open == limits.OPEN_REPLIES
    assert defaults.queue.max_messages == limits.QUEUE_MESSAGES
    assert defaults.journal.segment_bytes == limits.SEGMENT_BYTES
    assert defaults.journal.segment_seconds == limits.SEGMENT_SECONDS


@pytest.mark.parametrize(
    ("override", "section", "name", "value"),
    [
        ("journal.record=none", "journal", "record", "none"),
        ('journal.record = "none"', "journal", "record", "none"),
        ("journal.exclude=a/#, b/+", "journal", "exclude", ("a/#", "b/+")),
        ('journal.exclude=["a,b"]', "journal", "exclude", ("a,b",)),
        ("journal.retain_seconds=60", "journal", "retain_seconds", 60.0),
        ("limits.message_bytes=1_000", "limits", "message_bytes", 1000),
        ("smq.retained=false", "smq", "retained", False),
    ],
)
def test_an_override_is_read_by_its_type(
    override: str, section: str, name: str, value: object
) -> None:
    assert getattr(getattr(load(None, [override]), section), name) == value


def test_the_last_override_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text('data = "here"\n[queue]\nmax_messages = 5\n')
    settings = load(file, ["queue.max_messages=6", "queue.max_messages=7"])
    assert (settings.data, settings.queue.max_messages) == ("here", 7)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("journal.recrod=all", "no setting journal.recrod; did you mean journal.record?"),
        ("record=all", "did you mean journal.record?"),
        ("zebra=1", "no setting zebra; `hubbub config` prints all there are"),
        ("journal.record=al", 'journal.record = "al" cannot be used: expected one of all, dur'),
        ("session.inflight=many", 'session.inflight = "many" cannot be used: expected int'),
        ("session.inflight=0", "session.inflight = 0 cannot be used: expected int >= 1"),
        ("nonsense", "expected key=value"),
        ("listen=nowhere", "expected ADDR:PORT (0 to 65535), for example 127.0.0.1:1883"),
        ("listen=127.0.0.1:65536", "expected ADDR:PORT"),
        ("listen=1883", "cannot listen on '1883': expected ADDR:PORT (0 to 65535), for example"),
        ("data=", 'data = "" cannot be used: expected str of length >= 1'),
        ("listener=127.0.0.1:1", "no setting listener"),
    ],
)
def test_a_bad_override_says_what_to_do(text: str, complaint: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(None, [text])
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("data = 5", "data = 5 cannot be used: expected str, got int"),
        ("data = ", "is not TOML"),
        ("[journl]", "no setting journl"),
        ("journal = 5", "journal = 5 cannot be used: expected object"),
        ("[[listener]]\nport = 5", "no setting listener.port"),
        ("[[listener]]\ntls.certifcate = 5", "did you mean listener.tls.certificate?"),
        ('[[listener]]\naddress = "127.0.0.1:1"\nprotocols = 5', "listener[0].protocols = 5"),
        ("[[listener]]\norigins = []", "missing required field address"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(text)
    with pytest.raises(SettingError) as caught:
        load(file)
    assert str(file) in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[api]\ntoken = 271828",
        '[[bridge]]\nname = "up"\npassword = "271828"',
        '[bridge]\npassword = ["271828"]',
        '[cluster]\nurl = "nats://me:271828@there:4222"',
    ],
)
def test_what_is_wrong_is_said_without_secrets(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match="cannot be used") as caught:
        load(file)
    assert "271828" not in str(caught.value)


@pytest.mark.parametrize(
    ("protocols", "mount", "complaint"),
    [("[]", "a/", 'protocols = ["mqtt"]'), ('["mqtt"]', "a/#", "without + and #")],
)
def test_a_mount_point_is_a_name_and_for_mqtt_alone(
    tmp_path: Path, protocols: str, mount: str, complaint: str
) -> None:
    file = tmp_path / "hub.toml"
    text = '[[listener]]\naddress = "127.0.0.1:1"\n'
    file.write_text(f'{text}protocols = {protocols}\nmount_point = "{mount}"')
    with pytest.raises(SettingError) as caught:
        load(file)
    assert complaint in str(caught.value)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot read the configuration .*No such file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize("address", ["0.0.0.0:1883", "[::]:1883", "192.0.2.1:0", "example.org:1"])
def test_a_public_address_has_to_be_meant(address: str) -> None:
    with pytest.raises(SettingError, match="--set allow_anonymous=true"):
        load(None, [f"listen={address}"])
    (listener,) = load(None, [f"listen={address}", "allow_anonymous=true"]).listeners()
    assert listener.allow_anonymous is True


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.9.9.9:1883", "[::1]:1883", "localhost:1"])
def test_loopback_needs_no_credentials(address: str) -> None:
    assert load(None, [f"listen={address}"]).listeners()[0].allow_anonymous is True


@pytest.mark.parametrize("address", ["127.0.0.1:0", "0.0.0.0:0"])
def test_who_says_so_lets_nobody_in(address: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = load(None, [f"listen={address}", "allow_anonymous=false"])
    assert settings.listeners()[0].allow_anonymous is False
    assert f"{address} refuses everybody" in caplog.text


def test_a_listener_table_overrules_the_list(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text('[[listener]]\naddress = "127.0.0.1:8080"\nprotocols = ["mqtt"]\n')
    first, second = load(file).listeners()
    assert (first.address, first.protocols) == ("127.0.0.1:1883", ())
    assert (second.address, second.protocols) == ("127.0.0.1:8080", ("mqtt",))


def test_addresses() -> None:
    assert parse_address("[::1]:80") == Address("::1", 80)
    assert str(parse_address("[::1]:80")) == "[::1]:80"
    assert parse_address("localhost:0") == Address("localhost", 0)


def test_the_environment_lies_between_the_file_and_the_command_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "hubbub.toml"
    file.write_text('data = "file"\n[journal]\nrecord = "durable"\nsegment_seconds = 60\n')
    environment = {
        "HUBBUB_LISTEN": "127.0.0.1:1,[::1]:2", "HUBBUB_JOURNAL__RECORD": "none",
        "HUBBUB_DATA": "environment", "HUBBUB_TOKEN": "of the client", "PATH": "/bin",
        "HUBBUB_PORT": "tcp://10.0.0.1:1883", "HUBBUB_SERVICE_HOST": "10.0.0.1",
        "HUBBUB_JOURNAL__RECROD": "all",
    }  # fmt: skip
    found = load(file, ["data=line"], environment)
    assert found.listen == ("127.0.0.1:1", "[::1]:2") and found.data == "line"
    assert found.journal.record == "none" and found.journal.segment_seconds == 60
    [said] = caplog.messages
    assert "HUBBUB_JOURNAL__RECROD" in said and "did you mean journal.record?" in said
    with pytest.raises(SettingError, match="HUBBUB_SYS__INTERVAL: sys.interval = "):
        load(None, (), {"HUBBUB_SYS__INTERVAL": "soon"})


@pytest.mark.parametrize("place", ["mqtt://hub.example.org:1883", "a/b", "a:b", "a:1883 b:1883"])
def test_a_place_that_no_client_can_go_to(place: str) -> None:
    with pytest.raises(SettingError) as found:
        load(None, [f"cluster.place={place}"])
    text = str(found.value)
    assert "cluster.place" in text and place in text


def test_a_place_that_is_a_url_is_said_as_it_should_be() -> None:
    with pytest.raises(SettingError, match="expected HOST:PORT .* as 'hub.example.org:1883': say"):
        load(None, ["cluster.place=mqtt://hub.example.org:1883"])
    for place in ("", "hub.example.org:1883", "hub", "[fe80::1]:1883", "10.0.0.1:1883"):
        assert load(None, [f"cluster.place={place}"]).cluster.place == place
