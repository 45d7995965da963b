"""mosquitto.conf: what its lines become, and that none is passed over in silence."""

from __future__ import annotations

import gzip
import logging
import re
from pathlib import Path

import msgspec
import pytest

from hubbub.config import mosquitto_conf, sources
from hubbub.config.settings import DEFAULT_LISTEN, Bridge, Listener, Mqtt, Settings, Tls
from hubbub.config.sources import load
from hubbub.errors import SettingError

ROOT = Path(__file__).parents[2]
EXAMPLES = Path("/usr/share/doc/mosquitto/examples/mosquitto.conf")


def loaded(folder: Path, text: str, *overrides: str) -> Settings:
    file = folder / "mosquitto.conf"
    file.write_text(text)
    return load(file, overrides)


def test_a_file_of_a_whole_installation(tmp_path: Path) -> None:
    users, more = tmp_path / "users", tmp_path / "conf.d"
    more.mkdir()
    (more / "b.conf").write_text("listener 8883 192.0.2.1\ncertfile s.pem\nkeyfile k.pem\n")
    (more / "a.conf").write_text("max_queued_messages 500\nmax_queued_bytes 7000\n")
    (more / "readme").write_text("nothing of this\n")
    settings = loaded(
        tmp_path,
        f"""
# a comment
persistence true
max_inflight_bytes 9000
max_qos 1
retain_available false
persistence_location /var/lib/mosquitto/
password_file {users}
acl_file /etc/mosquitto/acl
max_inflight_messages 0
max_packet_size 2000
message_size_limit 1000
max_packet_size 3000
max_keepalive 600
persistent_client_expiration 2w
max_topic_alias 7
sys_interval 5
log_type error
log_type information

listener 1883
listener 9001 ::1
protocol websockets
max_connections 10
\tmax_connections -1
include_dir {more}
cafile ca.pem
require_certificate true
use_identity_as_username true
tls_version tlsv1.3
crlfile crl.pem
""",
    )
    assert settings.data == "/var/lib/mosquitto/"
    assert (settings.password_file, settings.acl_file) == (str(users), "/etc/mosquitto/acl")
    assert (settings.session.inflight, settings.session.backlog_messages) == (65_535, 500)
    assert (settings.session.backlog_bytes, settings.session.inflight_bytes) == (7000, 9000)
    assert (settings.mqtt.maximum_qos, settings.limits.retained_messages) == (1, 0)
    assert settings.journal.record == "all"
    assert (settings.limits.message_bytes, settings.mqtt.payload_bytes) == (3000, 1000)
    assert (settings.sys.interval, settings.mqtt.max_keepalive) == (5, 600)
    assert settings.mqtt.refuse_keepalive
    assert (settings.mqtt.max_session_expiry, settings.mqtt.topic_alias_maximum) == (1_209_600, 7)
    assert settings.log.level == "info"
    assert settings.allow_anonymous is False
    assert settings.listen == ()
    assert settings.listener == (
        Listener(address="[::]:1883", protocols=("mqtt",), websocket="never"),
        Listener(address="[::1]:9001", protocols=("mqtt",), websocket="only"),
        Listener(
            address="192.0.2.1:8883",
            protocols=("mqtt",),
            websocket="never",
            tls=Tls(
                certificate="s.pem", key="k.pem", only=True, client_ca="ca.pem", crl="crl.pem",
                require_certificate=True, identity="common_name", version="1.3",
            ),
        ),
    )  # fmt: skip


def test_without_a_listener_it_is_local_and_open(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "persistence false\n")
    assert settings.listen == DEFAULT_LISTEN
    assert all(listener.allow_anonymous for listener in settings.listeners())
    assert loaded(tmp_path, "", "listen=127.0.0.1:7").listen == ("127.0.0.1:7",)


@pytest.mark.parametrize(
    ("text", "record", "notes"),
    [("", "none", 1), ("persistence false\n", "none", 0), ("persistence true\n", "all", 0)],
)
def test_without_persistence_nothing_is_kept(
    tmp_path: Path, text: str, record: str, notes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As there; but who did not say it is told what would bring the journal and its tables."""
    assert loaded(tmp_path, text).journal.record == record
    assert loaded(tmp_path, text, "journal.record=durable").journal.record == "durable"
    said = [one.getMessage() for one in caplog.records if "persistence true" in one.getMessage()]
    assert len(said) == 2 * notes


def test_the_smallest_qos_of_several_listeners_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "persistence true\nallow_anonymous true\nlistener 1\nmax_qos 1\nlistener 2\nmax_qos 2\n"
    assert loaded(tmp_path, text).mqtt.maximum_qos == 1
    assert ":6: max_qos counts for every listener" in caplog.text


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("listener 1", "[::]:1"),
        ("listener 1 10.0.0.1", "10.0.0.1:1"),
        ("listener 1\nsocket_domain ipv4", "0.0.0.0:1"),
        ("port 7", "[::]:7"),
        ("bind_address localhost", "localhost:1883"),
        ("port 7\nbind_address 10.0.0.1", "10.0.0.1:7"),
        ("listener 0 /run/hub.sock", "unix:/run/hub.sock"),
    ],
)
def test_where_it_listens(tmp_path: Path, text: str, address: str) -> None:
    settings = loaded(tmp_path, text + "\nallow_anonymous true\n")
    assert [listener.address for listener in settings.listeners()] == [address]


def test_a_listener_lets_nobody_in_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As mosquitto since 2.0: it starts, refuses everybody, and says what to write."""
    for text in ("listener 1", "listener 1 127.0.0.1", "per_listener_settings true\nlistener 9"):
        caplog.clear()
        (listener,) = loaded(tmp_path, text + "\n").listeners()
        assert listener.allow_anonymous is False
        assert f"{listener.address} refuses everybody" in caplog.text


def test_settings_of_each_listener(tmp_path: Path) -> None:
    first, second = loaded(
        tmp_path,
        """
per_listener_settings true
listener 1
allow_anonymous true
listener 2
password_file /users
acl_file /acl
allow_zero_length_clientid false
mount_point plant/
clientid_prefixes dev- app-
""",
    ).listeners()
    assert (first.allow_anonymous, first.password_file, first.acl_file) == (True, "", "")
    assert (second.allow_anonymous, second.password_file, second.acl_file) == (
        False, "/users", "/acl",
    )  # fmt: skip
    assert second.require_client_id and not first.require_client_id
    assert (first.mount_point, second.mount_point) == ("", "plant/")
    assert first.client_prefixes == ("dev-", "app-")


def test_per_listener_settings_without_a_listener_open_no_port(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "per_listener_settings true\nallow_anonymous true\n")
    assert settings.listen == DEFAULT_LISTEN and not settings.listener


def test_certificates_of_clients_count_only_if_required(tmp_path: Path) -> None:
    (listener,) = loaded(
        tmp_path, "listener 8883\nallow_anonymous true\ncertfile s\ncafile ca\ncrlfile crl\n"
    ).listeners()
    assert listener.tls == Tls(certificate="s", only=True, chain="ca")


def test_a_bridge(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = loaded(
        tmp_path,
        """
connection upstream
address one.example:8883 two.example
topic sensors/# out 1 local/ remote/
topic # both 2
topic status
remote_username me
remote_password secret
remote_clientid hub-7
cleansession true
keepalive_interval 30
restart_timeout 5 90
bridge_protocol_version mqttv311
bridge_cafile ca.pem
bridge_insecure true
try_private true
start_type automatic
connection second
address three.example
topic x in
bridge_outgoing_retain false
topic clients/total in 0 there/ $SYS/broker/
topic uptime out 0 $SYS/broker/
""",
    )
    assert "topic uptime out 0 $SYS/broker/ has no effect" in caplog.text
    assert settings.bridge == (
        Bridge(
            name="upstream", addresses=("one.example:8883", "two.example"),
            topics=("sensors/# out 1 local/ remote/", "# both 2", "status"), user="me",
            password="secret", client_id="hub-7", clean=True, keep_alive=30, retry_seconds=90,
            version="3.1.1", tls=True, ca="ca.pem", check_name=False,
        ),
        Bridge(
            name="second", addresses=("three.example",), retain=False,
            topics=("x in", "clients/total in 0 there/ $SYS/broker/"),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("pid_file /run/x", "what starts the hub"),
        ("log_dest syslog", "stderr"),
        ("queue_qos0_messages true", "QoS 0"),
        ("connection x\naddress y\nnotifications false", "$SYS/broker/connection/"),
        ("connection x\naddress y\nstart_type lazy", "connect when the hub starts"),
        ("certfile x\nlistener 1 127.0.0.1\nallow_anonymous true", "before any listener"),
    ],
)
def test_what_has_no_effect_is_named_with_its_line(
    tmp_path: Path, line: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "hubbub"):
        loaded(tmp_path, "persistence true\n" + line + "\n")
    (record,) = caplog.records
    number = 2 if line.startswith("certfile") else 2 + line.count("\n")
    assert record.getMessage().startswith(f"{tmp_path / 'mosquitto.conf'}:{number}: ")
    assert hint in record.getMessage()


def test_what_makes_no_difference_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And who asks for a keep alive of minutes has it: Paho's clients heed no shorter one."""
    text = (
        "autosave_interval 5\npersistence_file m.db\nset_tcp_nodelay true\nlog_dest stderr\n"
        "queue_qos0_messages false\nupgrade_outgoing_qos false\nuser root\npersistence true\n"
    )
    with caplog.at_level(logging.WARNING, "hubbub"):
        assert loaded(tmp_path, text) == Settings(mqtt=Mqtt(max_keepalive=0))
    assert not caplog.records


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("plugin /usr/lib/x.so", "password_file and acl_file"),
        ("plugin /lib/mosquitto_dynamic_security.so\nport 1", "expected plugin_opt_config_file"),
        ("plugin_opt_config_file x", "say `plugin FILE` before it"),
        ("auth_plugin x.so\nauth_opt_a b", "password_file"),
        ("connection x\naddress y\nbridge_psk 271828", "bridge_cafile"),
        ("use_username_as_clientid true", "%u"),
        ("bind_interface eth0", "listener PORT ADDRESS"),
        ("listener 7 /run/socket", "listener 0 /PATH"),
        ("listener 0", "listener 0 /PATH"),
        ("listener x", "expected `listener PORT [ADDRESS]`"),
        ("protocol amqp", "expected one of mqtt, websockets"),
        ("allow_anonymous maybe", "expected true or false"),
        ("max_connections many", "expected a whole number"),
        ("persistent_client_expiration 5", "expected a number and one of h, d, w, m, y"),
        ("password_file", "expected a value"),
        ("max_connections 3 4", "expected a whole number"),
        ("max_inflight_bytes -1", "expected int >= 0"),
        ("max_keepalive 70000", "expected int <= 65535"),
        ("max_qos 3", "expected int <= 2"),
        ("listener 70000", "expected `listener PORT [ADDRESS]`"),
        ("connection x\naddress y\nkeepalive_interval 2", "expected int >= 5"),
        ("connection x\naddress y\ntopic # sideways", "expected `topic FILTER out|in|both"),
        ("tls_version tlsv1.1", "expected one of tlsv1.2, tlsv1.3"),
        ("address x", "belongs to a bridge"),
        ("include_dir /does/not/exist", "expected a directory"),
        ("listenr 1883", "no such option; did you mean listener?"),
        ("zzz 1", "no such option of mosquitto"),
        ("remote_pasword 271828", "did you mean remote_password?"),
    ],
)
def test_what_would_change_security_or_is_wrong_stops_the_start(
    tmp_path: Path, line: str, hint: str
) -> None:
    with pytest.raises(SettingError) as caught:
        loaded(tmp_path, "# first\n" + line + "\n")
    last = 2 + line.count("\n") if line.startswith("connection") else 2
    shown = line.splitlines()[last - 2].replace("271828", "…")
    said = f"{tmp_path / 'mosquitto.conf'}:{last}: {shown}"
    assert str(caught.value).startswith(said)
    assert hint in str(caught.value)


def test_a_file_of_passwords_taken_for_it_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        loaded(tmp_path, "ann:$argon2id$v=19$m=19456:SCRAM-SHA-256$20000:c2FsdA==$a2V5:a2V5\n")
    assert str(caught.value).endswith(":1: ann…: no such option of mosquitto")


def test_another_user_is_refused_only_to_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    loaded(tmp_path, "user mosquitto\n")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(SettingError, match="start it as that user"):
        loaded(tmp_path, "user mosquitto\n")


@pytest.mark.parametrize("text", ["listener 1\nrequire_certificate true", "connection x\ntopic #"])
def test_what_does_not_fit_together(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingError, match="need certfile|expected an address"):
        loaded(tmp_path, text + "\n")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot read the configuration .*No such file"):
        load(tmp_path / "none.conf")
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="not UTF-8"):
        load(tmp_path / "binary.conf")
    (tmp_path / "loop.conf").write_text(f"include_dir {tmp_path}\n")
    (tmp_path / "binary.conf").unlink()
    with pytest.raises(SettingError, match="few inside one another"):
        load(tmp_path / "loop.conf")


def test_every_table_leads_to_a_setting() -> None:
    tables: dict[type[msgspec.Struct], tuple[dict[str, mosquitto_conf._Setting], ...]] = {
        Settings: (mosquitto_conf._HUB, mosquitto_conf._ADMISSION),
        Listener: (mosquitto_conf._LISTENER, mosquitto_conf._ADMISSION),
        Bridge: (mosquitto_conf._BRIDGE,),
    }
    for kind, found in tables.items():
        known = {name for name, _ in sources._leaves(kind)}
        assert {setting.path for table in found for setting in table.values()} <= known


@pytest.mark.skipif(
    not (EXAMPLES.exists() or EXAMPLES.with_suffix(".conf.gz").exists()),
    reason="no example file of mosquitto here: apt install mosquitto",
)
def test_every_option_of_mosquittos_own_example_is_known() -> None:
    packed = EXAMPLES.with_suffix(".conf.gz")
    text = EXAMPLES.read_text() if EXAMPLES.exists() else gzip.decompress(packed.read_bytes())
    lines = text if isinstance(text, str) else text.decode()
    shown = set(re.findall(r"^#([a-z_0-9.]+)(?: |$)", lines, re.MULTILINE))
    assert len(shown) > 80
    assert shown <= mosquitto_conf.options()


def test_settings_are_those_of_a_toml_file_that_says_the_same(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "persistence true\nlistener 1883 127.0.0.1\nallow_anonymous true\n")
    file = tmp_path / "same.toml"
    file.write_text(
        'listen = []\nallow_anonymous = true\n[[listener]]\naddress = "127.0.0.1:1883"\n'
        'protocols = ["mqtt"]\nwebsocket = "never"\n[mqtt]\nmax_keepalive = 0\n'
    )
    assert load(file) == settings
    assert msgspec.structs.asdict(settings)["listener"] == settings.listener


def rows() -> dict[str, str]:
    """What the reference says of each option: its line of the table."""
    tables = (
        ("", mosquitto_conf._HUB),
        ("", mosquitto_conf._ADMISSION),
        ("[[listener]] ", mosquitto_conf._LISTENER),
        ("[[bridge]] ", mosquitto_conf._BRIDGE),
    )
    found = {
        option: f"`{place}{setting.path}`"
        for place, table in tables
        for option, setting in table.items()
    }
    found |= {option: "makes no difference here" for option in mosquitto_conf._SAME}
    found |= {option: f"no effect: {text}" for option, text in mosquitto_conf._NOTED.items()}
    found |= {option: f"refused: {text}" for option, text in mosquitto_conf._REFUSED.items()}
    return {option: f"| `{option}` | {text} |" for option, text in sorted(found.items())}


def test_the_reference_says_what_every_option_becomes() -> None:
    """Missing lines can be taken from the message of a failure as they are."""
    page = (ROOT / "docs/reference/mosquitto-conf.md").read_text()
    lines = set(page.splitlines())
    missing = [row for row in rows().values() if row not in lines]
    assert not missing, "\n".join(missing)
    shown = re.findall(r"^\| `([a-z_0-9.]+)[^`]*` \|", page, re.MULTILINE)
    assert set(shown) == mosquitto_conf.options()


def test_mosquittos_own_plugins_are_settings(tmp_path: Path) -> None:
    """Of 2.0 the one, of 2.1 all three; a file with them is followed like one with the options."""
    dynamic = "plugin /lib/mosquitto_dynamic_security.so\nplugin_opt_config_file d.json\n"
    settings = loaded(tmp_path, f"listener 1 127.0.0.1\n{dynamic}")
    assert settings.dynamic_security == "d.json"
    assert not settings.listeners()[0].allow_anonymous
    users = "/lib/mosquitto_password_file.so\nplugin_opt_password_file users\n"
    rules = "global_plugin /lib/mosquitto_acl_file.so\nplugin_opt_acl_file rules\n"
    settings = loaded(tmp_path, f"listener 1 127.0.0.1\nglobal_plugin {users}{rules}")
    assert (settings.password_file, settings.acl_file) == ("users", "rules")
    text = f"per_listener_settings true\nlistener 1\nplugin {users}listener 2 127.0.0.1\n{rules}"
    first, second = loaded(tmp_path, text).listeners()
    assert (first.password_file, second.password_file) == ("users", "")
    assert first.acl_file == second.acl_file == "rules"
    with pytest.raises(SettingError, match="counts for every listener"):
        loaded(tmp_path, f"per_listener_settings true\nlistener 1\n{dynamic}")
    with pytest.raises(SettingError, match="plugin_opt_config_file is understood"):
        loaded(tmp_path, dynamic.replace("config_file", "password_init_file"))


def test_what_mosquitto_2_1_says_of_each_listener(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        "max_topic_alias_broker 0\nretain_expiry_interval 5\nlistener 1 127.0.0.1\n"
        "listener_allow_anonymous true\nwebsockets_origin https://a.example\nlistener 2\n",
    )
    assert settings.mqtt.topic_aliases_sent == 0
    first, second = settings.listeners()
    assert (first.allow_anonymous, second.allow_anonymous) == (True, False)
    assert (first.origins, second.origins) == (("https://a.example",), ())


def test_shared_keys_are_for_the_listeners_with_a_hint(tmp_path: Path) -> None:
    """And the identity is the user's name where the file says so, without a `cafile`."""
    settings = loaded(
        tmp_path,
        "persistence true\npsk_file keys\nlistener 1 127.0.0.1\npsk_hint here\n"
        "use_identity_as_username true\nlistener 2 127.0.0.1\nallow_anonymous true\n",
    )
    keyed, plain = settings.listeners()
    assert keyed.tls == Tls(psk_file="keys", psk_hint="here", identity="common_name", only=True)
    assert plain.tls == Tls()
    with pytest.raises(SettingError, match="listener 1: psk_hint needs psk_file"):
        loaded(tmp_path, "listener 1 127.0.0.1\npsk_hint here\n")
