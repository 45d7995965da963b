"""Tokens (JWT): which keys are taken for which algorithms, and what each claim must say."""

from __future__ import annotations

import base64
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.auth.tokens import BadToken, Tokens
from hubbub.config.identity import Jwt
from hubbub.core.limits import TOKEN_BYTES, TOKEN_KEYS, TOKEN_LINES
from hubbub.errors import SettingError
from tests.auth.tokens import EC, ED, RSA, SECRET, jwk, pem, signed, write

ALL = ("RS256", "ES256", "EdDSA", "HS256")


def tokens(tmp_path: Path, **more: Any) -> Tokens:
    """With the keys of all kinds."""
    keys = write(tmp_path / "jwks.json", *ALL)
    return Tokens(Jwt(**{"keys": keys, "algorithms": ALL, **more}))


def refused(found: Tokens, secret: bytes) -> str:
    with pytest.raises(BadToken) as error:
        found.check(secret)
    return str(error.value)


def part(value: object) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


@pytest.mark.parametrize("algorithm", ALL)
def test_each_kind_of_key_lets_in(tmp_path: Path, algorithm: str) -> None:
    for header in (None, {"kid": algorithm}):
        token = tokens(tmp_path).check(signed(algorithm, header))
        assert token.user == "ann" and token.lines is None
        assert 50 < token.expires - time.time() <= 60


@pytest.mark.parametrize(("algorithm", "key"), [("RS256", RSA), ("ES256", EC), ("EdDSA", ED)])
def test_keys_in_pem(tmp_path: Path, algorithm: str, key: Any) -> None:
    file = tmp_path / "keys.pem"
    file.write_bytes(b"# ours\n" + pem(RSA) + pem(EC) + b"\n" + pem(ED))
    found = Tokens(Jwt(keys=str(file)))
    assert found.check(signed(algorithm)).user == "ann"
    assert refused(found, signed(algorithm, {"kid": "x"})[:-8] + b"AAAAAAAA").startswith("its sig")


def test_a_public_key_is_not_the_secret_of_an_hmac(tmp_path: Path) -> None:
    """The oldest attack: HS256 with the bytes of the RSA key's file, which everybody has."""
    for material in (pem(RSA), pem(RSA).strip()):
        head = part({"alg": "HS256", "typ": "JWT"}) + b"."
        body = head + part({"sub": "ann", "exp": int(time.time()) + 60})
        forged = body + b"." + part(hmac.digest(material, body, "sha256"))
        assert refused(tokens(tmp_path), forged) == "its signature is wrong"
        file = tmp_path / "rsa.pem"
        file.write_bytes(pem(RSA))
        both = Tokens(Jwt(keys=str(file), algorithms=("RS256", "HS256")))
        assert refused(both, forged) == "no key here is for HS256"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, [], 7, "HS512"])
def test_only_the_settings_say_which_algorithms(tmp_path: Path, algorithm: object) -> None:
    body = part({"alg": algorithm}) + b"." + part({"sub": "ann", "exp": 9e9}) + b"."
    for signature in (b"", b"AAAA"):
        assert "is not taken here" in refused(tokens(tmp_path), body + signature)


def test_an_algorithm_that_is_not_set_is_refused(tmp_path: Path) -> None:
    found = tokens(tmp_path, algorithms=("EdDSA",))
    assert found.check(signed("EdDSA")).user == "ann"
    assert refused(found, signed("RS256")) == "its algorithm 'RS256' is not taken here"


def test_a_key_is_for_its_own_algorithm_only(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [jwk("RS256", alg="RS512")]}))
    found = Tokens(Jwt(keys=str(file), algorithms=("RS256", "RS512")))
    assert refused(found, signed("RS256")) == "no key here is for RS256"


def test_keys_that_a_token_brings_are_not_looked_at(tmp_path: Path) -> None:
    mine = rsa.generate_private_key(65_537, 2048)
    own = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(mine.public_key()))
    for header in ({"jwk": own}, {"jku": "http://127.0.0.1:9/k"}, {"x5u": "file:///etc/passwd"}):
        assert refused(tokens(tmp_path), signed("RS256", header, mine)) == "its signature is wrong"
    for header in ({"crit": ["b64"], "b64": True}, {"crit": ["x"], "x": 1}, {"crit": []}):
        assert "rit" in refused(tokens(tmp_path), signed("EdDSA", header))
    other = signed("EdDSA", {"kid": "../../dev/null"})
    assert refused(tokens(tmp_path), other).startswith("no key here of the name")


NOW = int(time.time())


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW - 60}, "the token of 'ann' has expired"),
        ({"exp": None}, "its claim 'exp' is no time"),
        ({"exp": "soon"}, "its claim 'exp' is no time"),
        ({"exp": True}, "its claim 'exp' is no time"),
        ({"exp": 1e300}, "its claim 'exp' is no time"),
        ({"exp": -1}, "its claim 'exp' is no time"),
        ({"nbf": NOW + 86_400}, "the token of 'ann' is not valid yet"),
        ({"nbf": []}, "its claim 'nbf' is no time"),
        ({"sub": None}, "its claim 'sub' is no user name"),
        ({"sub": ""}, "its claim 'sub' is no user name"),
        ({"sub": 7}, "its claim 'sub' is no user name"),
        ({"sub": "a\nb"}, "its claim 'sub' is no user name"),
        ({"iss": "them"}, "its issuer (iss) is not 'us'"),
        ({"iss": None}, "its issuer (iss) is not 'us'"),
        ({"aud": "them"}, "it is not for 'hub' (aud)"),
        ({"aud": ["them", "others"]}, "it is not for 'hub' (aud)"),
        ({"aud": None}, "it is not for 'hub' (aud)"),
        ({"aud": {"hub": 1}}, "it is not for 'hub' (aud)"),
        ({"may": None}, "its claim 'may' is no list of lines"),
        ({"may": "read a"}, "its claim 'may' is no list of lines"),
        ({"may": ["sing a"]}, "the token: 'sing' is none of read"),
        ({"may": ["read a/#/b"]}, "the token: 'a/#/b' is not a topic filter"),
        ({"may": ["read a"] * (TOKEN_LINES + 1)}, "its claim 'may' has more than"),
    ],
)  # fmt: skip
def test_what_claims_must_say(tmp_path: Path, claims: dict[str, Any], reason: str) -> None:
    found = tokens(tmp_path, issuer="us", audience="hub", acl_claim="may")
    good: dict[str, Any] = {"iss": "us", "aud": ["x", "hub"], "may": ["read a/#"]}
    assert found.check(signed(**good)).lines == ("read a/#",)
    assert refused(found, signed(**{**good, **claims})).startswith(reason)


def test_a_token_for_somebody_is_not_taken_where_nobody_says_who_this_is(tmp_path: Path) -> None:
    assert refused(tokens(tmp_path), signed(aud="hub")).startswith("it is for somebody (aud)")


def test_the_user_may_be_another_claim(tmp_path: Path) -> None:
    found = tokens(tmp_path, user_claim="https://example.org/device")
    assert found.check(signed(**{"https://example.org/device": "d7"})).user == "d7"


def test_clocks_may_differ_a_little(tmp_path: Path) -> None:
    found = tokens(tmp_path, leeway_seconds=30.0)
    token = found.check(signed(exp=int(time.time()) - 10, nbf=int(time.time()) + 10))
    assert found.still(token)
    assert "expired" in refused(tokens(tmp_path, leeway_seconds=0.0), signed(exp=NOW - 1))


def test_a_token_of_any_length_is_quickly_done_with(tmp_path: Path) -> None:
    found = tokens(tmp_path)
    deep = part(b"[" * (TOKEN_BYTES // 2)) + b".e30.AAAA"
    for secret in (
        b"eyJ" * 10_000_000 + b"..", deep, part(b'{"alg":"RS256","x":' + b"[" * 5_000) + b".e30.x",
    ):  # fmt: skip
        began = time.perf_counter()
        refused(found, secret)
        assert time.perf_counter() - began < 0.05
    most = signed("RS256", pad="x" * 5_500)
    assert len(most) < TOKEN_BYTES and found.check(most).user == "ann"
    more = signed("RS256", pad="x" * 6_500)
    assert refused(found, more).endswith(f"and {TOKEN_BYTES} are the most")


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
names = st.sampled_from(("sub", "exp", "nbf", "iss", "aud", "may", "iat", "jti", "x"))


@settings(deadline=None, max_examples=80)
@given(claims=st.dictionaries(names, json_values))
def test_signed_claims_of_any_shape_let_in_or_say_why(
    tmp_path_factory: pytest.TempPathFactory, claims: dict[str, Any]
) -> None:
    found = FOUND.setdefault("one", tokens(tmp_path_factory.mktemp("keys"), acl_claim="may"))
    body = jwt.PyJWS().encode(json.dumps(claims).encode(), ED, "EdDSA").encode()
    try:
        token = found.check(body)
    except BadToken as error:
        assert str(error)
    else:
        assert token.user == claims["sub"]


@settings(deadline=None, max_examples=150)
@given(header=json_values | st.dictionaries(st.sampled_from(("alg", "kid", "crit", "b64", "zip")),
       json_values | st.sampled_from(ALL)), rest=st.binary(max_size=60), raw=st.binary(max_size=90))
def test_garbage_lets_nobody_in(
    tmp_path_factory: pytest.TempPathFactory, header: object, rest: bytes, raw: bytes
) -> None:  # fmt: skip
    found = FOUND.setdefault("two", tokens(tmp_path_factory.mktemp("keys")))
    for secret in (part(header) + b"." + part(rest) + b"." + part(raw), raw, b"eyJ" + raw):
        assert refused(found, secret)


FOUND: dict[str, Tokens] = {}


# The file

UNUSABLE = {
    "": "is neither a JWKS nor has a PUBLIC KEY",
    "{": "is not JSON",
    "[" * 9: "is neither a JWKS nor has a PUBLIC KEY",
    '{"keys": 7}': "is no JWKS",
    '{"keys": []}': "has no key for RS256, ES256, EdDSA",
    '{"keys": [{"kty": "XYZ"}, 7]}': "has no key for RS256, ES256, EdDSA",
    '{"keys": [{"kty": "RSA", "n": "AQAB", "kid": "k1"}]}': "key 'k1'",
    '{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}': "key ''",
    "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n": "keys",
    json.dumps({"keys": [jwk("RS256", use="enc")]}): "has no key for",
    json.dumps({"keys": [jwk("EdDSA")] * (TOKEN_KEYS + 1)}): "has more than",
    json.dumps({"keys": [jwk("HS256")]}): "has no key for RS256, ES256, EdDSA",
}


@pytest.mark.parametrize("text", UNUSABLE)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(SettingError) as error:
        Tokens(Jwt(keys=str(file)))
    assert str(error.value).startswith("jwt.keys: ") and UNUSABLE[text] in str(error.value)


def test_weak_keys_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(pem(rsa.generate_private_key(65_537, 1024)))
    with pytest.raises(SettingError, match="an RSA key of 1024 bits"):
        Tokens(Jwt(keys=str(file)))
    file.write_bytes(pem(ec.generate_private_key(ec.SECP256K1())))
    with pytest.raises(SettingError, match="which signs no tokens"):
        Tokens(Jwt(keys=str(file)))
    short = {"kty": "oct", "k": "c2hvcnQ", "kid": "s"}
    file.write_text(json.dumps({"keys": [short]}))
    found = Tokens(Jwt(keys=str(file), algorithms=("HS256",)))
    assert refused(found, signed("HS256")) == "no key here is for HS256"


def test_the_file_is_read_again(tmp_path: Path) -> None:
    found = tokens(tmp_path)
    token, other = found.check(signed("EdDSA")), found.check(signed("HS256"))
    write(tmp_path / "jwks.json", "EdDSA")
    found.read()
    assert found.still(token) and not found.still(other)
    (tmp_path / "jwks.json").write_text("{")
    with pytest.raises(SettingError):
        found.read()
    assert found.still(token), "what it said before goes on"
    assert SECRET not in [key.material for key in found.keys]


def test_settings_that_do_not_fit_together() -> None:
    assert Jwt().complaint() == ""
    assert Jwt(issuer="us").complaint() == "jwt.issuer needs jwt.keys"
    assert "empty" in Jwt(keys="k", algorithms=()).complaint()
    assert "empty" in Jwt(keys="k", user_claim="").complaint()
