"""`hubbub.js` in a real browser, with a real hub and devices that know nothing of browsers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from hubbub.auth.passwords import add_user
from hubbub.client.mqtt import connect as connect_mqtt
from hubbub.client.smq import SmqMessage
from hubbub.client.smq import connect as connect_smq
from hubbub.embed.hub import Hub
from tests.certificates import Authority
from tests.process import RunningHub, StartHub
from tests.web.chromium import Chromium, Page, PageError

pytestmark = pytest.mark.interop

# What every page of these tests begins with. `got` is what arrived, `until` waits for something.
BEGIN = """
    Object.assign(window, await import("/hubbub.js"), { got: [] });
    window.until = async (done) => {
        while (!done()) await new Promise((again) => setTimeout(again, 5));
    };
    window.take = (data, { topic, subtopic, sender }) => got.push([data, topic, subtopic, sender]);
    window.hub = connect("/", { reconnect: 20, ...a });
"""

OpenPage = Callable[..., AbstractAsyncContextManager[Page]]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    running = RunningHub(tmp_path_factory.mktemp("hub") / "data")
    yield running
    running.stop(signal.SIGKILL)


@pytest.fixture
def open_page(browser: Chromium, hub: RunningHub) -> OpenPage:
    """A page of the hub's own origin that has loaded the client, with these options."""

    @asynccontextmanager
    async def open_page(origin: str = "", **options: Any) -> AsyncIterator[Page]:
        async with browser.page((origin or hub.url("http")) + "/hubbub.js") as page:
            await page.run(BEGIN, options)
            yield page

    return open_page


@asynccontextmanager
async def running(server: uvicorn.Server) -> AsyncIterator[str]:
    """A web server of an application; its origin."""
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving


async def taken(page: Page, count: int = 1) -> Any:
    """The next messages that the page got."""
    return await page.run("await until(() => got.length >= a); return got.splice(0, a)", count)


async def within(seconds: float, waited: Any) -> Any:
    async with asyncio.timeout(seconds):
        return await waited


async def test_text_json_and_bytes_reach_a_device_as_they_are(
    open_page: OpenPage, hub: RunningHub
) -> None:
    async with open_page() as page, connect_smq(hub.url("smq")) as device:
        await device.subscribe("to/device")
        number = await page.run("""
            hub.publish("to/device", "grüß dich\\ufeff");
            hub.publish("to/device", { lamp: [1, true, null, "ü"] });
            hub.publish("to/device", Uint8Array.of(0, 255, 10).buffer);
            hub.publish("to/device", Uint8Array.of(9, 8, 7, 6).subarray(1, 3));
            await hub.publish("to/device", "");
            return hub.etid;
        """)
        messages = device.messages()
        got = [await within(10, anext(messages)) for _ in range(5)]
        assert [message.payload for message in got] == [
            "grüß dich\ufeff".encode(), '{"lamp":[1,true,null,"ü"]}'.encode(), b"\x00\xff\x0a",
            b"\x08\x07", b"",
        ]  # fmt: skip
        assert {message.sender for message in got} == {number}


async def test_text_json_and_bytes_come_from_a_device_as_they_are(
    open_page: OpenPage, hub: RunningHub
) -> None:
    async with open_page() as page, connect_smq(hub.url("smq")) as device:
        await page.run("""
            await hub.subscribe("text", take);
            await hub.subscribe("json", take, { type: "json" });
            await hub.subscribe("raw", (bytes) => got.push([...bytes]), { type: "raw" });
        """)
        await device.publish("text", "\ufeffgrüß dich".encode())
        await device.publish("json", b'{"lamp": [1, 2]}')
        await device.publish("raw", b"\x00\xff\x0a")
        assert await taken(page, 3) == [
            ["\ufeffgrüß dich", "text", "", device.number],
            [{"lamp": [1, 2]}, "json", "", device.number],
            [0, 255, 10],
        ]


async def test_what_is_no_json_comes_as_an_event(open_page: OpenPage, hub: RunningHub) -> None:
    async with open_page() as page, connect_smq(hub.url("smq")) as device:
        await page.run("""
            hub.addEventListener("message", ({ detail }) => got.push([...detail.bytes]));
            await hub.subscribe("json", take, { type: "json" });
        """)
        await device.publish("json", b"{")
        assert await taken(page) == [[0x7B]]


async def test_between_a_page_and_an_mqtt_5_client(open_page: OpenPage, hub: RunningHub) -> None:
    async with open_page() as page, connect_mqtt(hub.url("mqtt"), version="5") as client:
        await client.subscribe("rooms/#", qos=1)
        await page.run("""
            await hub.subscribe("lamp", take, { subtopic: "colour", type: "json" });
            await hub.subscribe("self", take);
            await hub.publish("rooms/1", { on: true }, "state");
        """)
        message = await within(10, anext(client.messages()))
        assert (message.topic, message.payload) == ("rooms/1", b'{"on":true}')
        assert dict(message.user)["smq-subtopic"] == "state"
        await client.publish("lamp", '"red"', user={"smq-subtopic": "colour"})
        assert (await taken(page))[0][:3] == ["red", "lamp", "colour"]
        await client.publish(message.response_topic, "seen")
        assert (await taken(page))[0][:2] == ["seen", "self"]


async def test_a_topic_has_a_callback_for_each_sub_topic_and_one_for_the_rest(
    open_page: OpenPage, hub: RunningHub
) -> None:
    async with open_page() as page, connect_smq(hub.url("smq")) as device:
        await page.run("""
            await hub.subscribe("room", (text) => got.push(["warm", text]), { subtopic: "temp" });
            await hub.subscribe("room", (text) => got.push(["rest", text]));
        """)
        await device.publish("room", b"21", subtopic="temp")
        await device.publish("room", b"60", subtopic="humidity")
        await device.publish("room", b"hello")
        assert await taken(page, 3) == [["warm", "21"], ["rest", "60"], ["rest", "hello"]]


async def test_whoever_sent_a_message_can_be_answered(open_page: OpenPage, hub: RunningHub) -> None:
    async with open_page() as page, connect_smq(hub.url("smq")) as device:
        number = await page.run("""
            await hub.subscribe("questions", (text, { sender }) => hub.publish(sender, text + "!"));
            return hub.subscribe("self", take);
        """)
        await device.publish("questions", b"well")
        answer = await within(10, anext(device.messages()))
        assert (answer.payload, answer.sender) == (b"well!", number)
        await device.publish(number, b"thanks")
        assert await taken(page) == [["thanks", "self", "", device.number]]


async def test_what_comes_before_the_connection_waits_in_order(
    open_page: OpenPage, hub: RunningHub
) -> None:
    async with open_page() as page:
        state = await page.run("""
            window.early = connect("/");
            const before = early.state;
            early.subscribe("early", take, { subtopic: "second" });
            early.subscribe("early", take);
            early.observe("early", (count, topic) => got.push([count, topic]));
            for (let n = 0; n < 100; n++) early.publish("early", n, n % 2 ? "second" : 0);
            early.publish("late", "x");
            await until(() => got.length > 100);
            return before;
        """)
        assert state == "connecting"
        got = await page.run("return got.filter((one) => one.length === 4)")
        assert [one[0] for one in got] == [str(n) for n in range(100)]
        assert {one[2] for one in got[1::2]} == {"second"} and {one[2] for one in got[::2]} == {""}
        assert await page.run("return got.filter((one) => one.length === 2)") == [[1, "early"]]


async def test_more_than_a_thousand_waiting_messages_are_refused(open_page: OpenPage) -> None:
    async with open_page() as page:
        refused = await page.run("""
            const lost = connect("ws://127.0.0.1:9/", { reconnect: false });
            const sent = Array.from({ length: 1002 }, () => lost.publish("x", "y"));
            const kinds = (await Promise.allSettled(sent)).map((one) => one.reason.name);
            return kinds.filter((name) => name === "RangeError").length;
        """)
        assert refused == 2


async def test_observing_a_topic_and_a_client(open_page: OpenPage, hub: RunningHub) -> None:
    async with open_page() as page:
        seen = "(count, topic) => got.push([count, topic])"
        async with connect_smq(hub.url("smq")) as device:
            await page.run(f"await hub.observe('watched', {seen})")
            assert await taken(page) == [[0, "watched"]]
            await page.run(f"await hub.observe(a, {seen})", device.number)
            await device.subscribe("watched")
            assert await taken(page) == [[1, "watched"]]
        gone = await taken(page, 2)
        assert sorted(gone, key=str) == [[0, "watched"], [0, device.number]]
        await page.run("hub.unobserve('watched'); await hub.create('settled')")
        async with connect_smq(hub.url("smq")) as device:
            await device.subscribe("watched")
            await page.run("await hub.create('settled too')")
        assert await page.run("return got") == []


async def test_unsubscribing_and_subscribing_again(open_page: OpenPage, hub: RunningHub) -> None:
    async with open_page() as page, connect_smq(hub.url("smq")) as device:
        await page.run("""
            hub.subscribe("news", take);
            hub.unsubscribe("news");             // before the hub has answered
            await hub.subscribe("news", take);
            hub.unsubscribe("news");
            await hub.create("settled");
        """)
        await device.publish("news", b"lost")
        await device.create("after that")  # answered: the hub has seen it before what comes next
        await page.run("await hub.subscribe('news', take)")
        await device.publish("news", b"found")
        assert [one[0] for one in await taken(page)] == ["found"]


async def test_calls_between_two_pages(open_page: OpenPage) -> None:
    async with open_page() as asked, open_page() as asking:
        number = await asked.run("""
            await hub.serve("sums", ([a, b]) => a + b, { type: "json" });
            await hub.serve("self", async (text, { topic }) => `${text} to ${topic}`);
            await hub.serve("broken", () => { throw new TypeError("on purpose"); });
            return hub.etid;
        """)
        assert await asking.run("return hub.call('sums', [20, 1], { type: 'json' })") == 21
        assert await asking.run("return hub.call(a, 'hello')", number) == "hello to self"
        many = "Promise.all(Array.from({ length: 30 }, (_, n) => hub.call(a, `${n}`)))"
        assert await asking.run(f"return {many}", number) == [f"{n} to self" for n in range(30)]
        with pytest.raises(PageError, match="the handler failed: TypeError"):
            await asking.run("return hub.call('broken', '')")
        with pytest.raises(PageError, match="no answer within 100 ms"):
            await asking.run("return hub.call('nobody', '', { timeout: 100 })")
        with pytest.raises(PageError, match="JSON"):
            await asking.run("return hub.call(a, 'x', { type: 'json' })", number)


async def test_of_several_answers_the_first_counts_and_the_others_harm_no_call(
    open_page: OpenPage,
) -> None:
    async with open_page() as one, open_page() as two, open_page() as asking:
        for page in (one, two):
            await page.run("await hub.serve('echo', (text) => text)")
        ask = "const got = []; for (const n of a) got.push(await hub.call('echo', n)); return got"
        assert await asking.run(ask, list("abcdefgh")) == list("abcdefgh")


async def test_a_page_asks_a_device_and_a_device_asks_a_page(
    open_page: OpenPage, hub: RunningHub
) -> None:
    async def shout(message: SmqMessage) -> str:
        return message.payload.decode().upper()

    async with open_page() as page, connect_smq(hub.url("smq")) as device:
        serving = asyncio.ensure_future(device.serve("$queue/shouts", shout))
        assert await page.run("return hub.call('$queue/shouts', 'hello')") == "HELLO"
        serving.cancel()
        number = await page.run("return hub.serve('self', (text) => text.length)")
        assert (await device.call(number, b"four")).payload == b"4"


@pytest.mark.parametrize("by_address", [True, False])
async def test_a_file_from_a_device_comes_whole_at_full_speed(
    by_address: bool, open_page: OpenPage, hub: RunningHub
) -> None:
    """Twenty MB, faster than a page can look at them: the device waits for the page."""
    size, count = 20_000, 1_000
    async with open_page() as page, connect_smq(hub.url("smq")) as device:
        number = await page.run(
            """
            const take = (bytes) => {
                const until = performance.now() + 1;
                while (performance.now() < until);
                got.push(new DataView(bytes.buffer, bytes.byteOffset).getUint32(0));
            };
            await hub.subscribe(a ? "self" : "file", take, { type: "raw" });
            return hub.etid;
            """,
            by_address,
        )
        for piece in range(count):
            await device.publish(
                number if by_address else "file", piece.to_bytes(4, "big") + bytes(size - 4)
            )
        assert await within(90, taken(page, count)) == list(range(count))


async def test_closing_ends_the_calls_that_are_open(open_page: OpenPage) -> None:
    async with open_page() as page:
        ended = """
            const asked = Array.from({ length: 12 }, () => hub.call("nobody", ""));
            setTimeout(() => hub.close(), 100);
            const done = await Promise.allSettled(asked);
            return new Set(done.map(({ reason }) => reason.message)).size;
        """
        assert await page.run(ended) == 1


async def test_after_a_restart_of_the_hub_everything_is_as_before(
    open_page: OpenPage, start_hub: StartHub
) -> None:
    first = start_hub()
    async with open_page(first.url("http"), uid="one page") as page:
        before = await page.run("""
            hub.addEventListener("close", ({ detail }) => got.push(detail.returning));
            await hub.subscribe("orders", take, { subtopic: "urgent" });
            await hub.observe("orders", () => {});
            return [await hub.create("orders"), await hub.createsub("urgent")];
        """)
        first.stop()
        await page.run("await until(() => hub.state === 'connecting')")
        await page.run("hub.publish('orders', 'while away', 'urgent')")
        second = start_hub("--listen", f"127.0.0.1:{first.port}")
        await page.run("await until(() => got.some((one) => one.length === 4))")
        got = await page.run("return got.splice(0)")
        assert set(got[:-1]) == {True} and got[-1][:3] == ["while away", "orders", "urgent"]
        async with connect_smq(second.url("smq")) as device:
            assert [await device.create("orders"), await device.createsub("urgent")] == before
            await device.publish("orders", b"now", subtopic="urgent")
            assert (await taken(page))[0][0] == "now"


async def test_calls_go_on_after_a_restart_of_the_hub(
    open_page: OpenPage, start_hub: StartHub
) -> None:
    first = start_hub()
    ask = "Promise.all(Array.from({ length: 9 }, () => hub.call('$queue/echo', 'x')))"
    async with open_page(first.url("http")) as page:
        await page.run("await hub.serve('$queue/echo', (text) => text)")
        assert await page.run(f"return {ask}") == ["x"] * 9
        first.stop()
        await page.run("await until(() => hub.state === 'connecting')")
        start_hub("--listen", f"127.0.0.1:{first.port}")
        assert await page.run(f"return {ask}") == ["x"] * 9


async def test_a_hub_that_fell_silent_is_left_and_found_again(
    open_page: OpenPage, start_hub: StartHub
) -> None:
    quiet = start_hub()
    async with open_page(quiet.url("http")) as page:
        await page.run("""
            const real = window.setInterval;
            window.setInterval = (code, wait) => real(code, wait / 100); // half a minute is long
            window.pinging = connect("/", { reconnect: 20 });
            pinging.addEventListener("close", ({ detail }) => got.push(detail.reason));
            await pinging.ready();
        """)
        quiet.process.send_signal(signal.SIGSTOP)
        assert await taken(page) == ["the hub is silent"]
        quiet.process.send_signal(signal.SIGCONT)
        await page.run("await pinging.ready()")


async def test_a_hub_that_says_disconnect_is_left_for_good(open_page: OpenPage) -> None:
    async with open_page(uid="the same") as page:
        closed = """
            await hub.ready();
            const asked = hub.create("x");
            window.other = connect("/", { uid: "the same" });
            await until(() => hub.state === "closed");
            await asked;
            return hub.publish("x", "y").catch((error) => [error.name, error.message]);
        """
        assert await page.run(closed) == ["Refused", "reconnect"]
        assert await page.run("await other.ready(); return other.state") == "open"


async def test_closing_says_so_to_the_hub(open_page: OpenPage, hub: RunningHub) -> None:
    async with open_page() as page, connect_smq(hub.url("smq")) as device:
        number = await page.run("await hub.ready(); return hub.etid")
        gone = asyncio.get_running_loop().create_future()
        await device.observe(number, lambda count, _: gone.set_result(count))
        await device.create("settled")
        await page.run("hub.close()")
        assert await within(10, gone) == 0
        with pytest.raises(PageError, match="the page closed the connection"):
            await page.run("await hub.subscribe('x', take)")


async def test_a_topic_that_the_hub_refuses(open_page: OpenPage) -> None:
    async with open_page() as page:
        refused = """
            const asked = [hub.create(a), hub.publish(a, "x"), hub.publish("allowed", "y")];
            const done = await Promise.allSettled(asked);
            return done.map(({ reason }) => reason?.name ?? "fine");
        """
        assert await page.run(refused, "$SYS/mine") == ["Refused", "Refused", "fine"]


async def test_credentials_are_checked(
    open_page: OpenPage, start_hub: StartHub, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    add_user(users, "ann", b"secret")
    guarded = start_hub("--set", f"password_file={users}").url("http")
    asked = """
        const other = connect("/", { authenticate: b ? () => Promise.resolve(a) : a });
        return other.ready().then(() => "in", ({ name, code }) => `${name} ${code}`);
    """
    async with open_page(guarded, authenticate="ann:secret") as page:
        await page.run("await hub.ready()")
        assert await page.run(asked, "ann:secret", True) == "in"
        assert await page.run(asked, "ann:wrong", False) == "Refused 3"
        assert await page.run(asked, "", False) == "Refused 3"
        in_url = "await connect(`ws://ann:secret@${location.host}`).ready()"
        await page.run(in_url)


async def test_the_function_that_makes_credentials_sees_seed_and_address(
    open_page: OpenPage,
) -> None:
    async with open_page() as page:
        hello = await page.run("""
            let seen;
            await connect("/", { authenticate: (hello) => { seen = hello; return "" } }).ready();
            return seen;
        """)
        assert hello["address"] == "127.0.0.1" and 0 <= hello["seed"] < 1 << 32
        failing = (
            "await connect('/', { authenticate: () => { throw new Error('no key') } }).ready()"
        )
        with pytest.raises(PageError, match="no key"):
            await page.run(failing)


async def test_a_page_of_a_foreign_origin_is_refused(
    open_page: OpenPage, hub: RunningHub, start_hub: StartHub
) -> None:
    elsewhere = start_hub()
    reach = """
        const loaded = await import(a + "/hubbub.js").then(() => "loaded", () => "refused");
        const other = connect(a, { reconnect: false });
        return [loaded, await other.ready().then(() => "in", () => "kept out")];
    """
    async with open_page(elsewhere.url("http")) as page:
        assert await page.run(reach, hub.url("http")) == ["refused", "kept out"]


async def test_a_page_of_an_allowed_origin_is_let_in(
    open_page: OpenPage, hub: RunningHub, start_hub: StartHub, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        f'[[listener]]\naddress = "127.0.0.1:0"\norigins = ["{hub.url("http")}"]\n', "utf-8"
    )
    open_one = start_hub("--config", str(rules))
    async with open_page() as page:
        come = """
            const { connect } = await import(a + "/hubbub.js");   // its default is its own hub
            const other = connect();
            await other.ready();
            return other.create("here");
        """
        assert await page.run(come, open_one.url("http")) > 1


async def test_a_page_over_tls_reaches_two_plain_devices_at_once(
    open_page: OpenPage, start_hub: StartHub, tmp_path: Path
) -> None:
    pem = Authority(tmp_path / "certificates").sign("localhost", server=True)
    both = start_hub("--set", f"tls.certificate={pem}", "--set", f"tls.key={pem}")
    payload = [*range(256)] * 200
    async with (
        open_page(both.url("https")) as page,
        connect_smq(both.url("smq")) as one,
        connect_smq(both.url("smq")) as two,
    ):
        assert await page.run("return location.protocol") == "https:"
        for device in (one, two):
            await device.subscribe("lamps")
        await page.run(
            """
            await hub.subscribe("page", (bytes) => got.push([...bytes]), { type: "raw" });
            await hub.publish("lamps", Uint8Array.from(a));
        """,
            payload,
        )
        for device in (one, two):
            assert (await within(10, anext(device.messages()))).payload == bytes(payload)
            await device.publish("page", bytes(payload))
        assert await taken(page, 2) == [payload, payload]


async def test_a_page_of_an_application_that_embeds_the_hub(browser: Chromium) -> None:
    hub = Hub()
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    app = Starlette(routes=[Mount("/smq", hub.asgi)])
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None))
    async with hub, running(server) as origin:
        hub.subscribe("to/program", lambda data, *_: heard.put_nowait(data))
        async with browser.page(f"{origin}/smq/hubbub.js") as page:
            await page.run("""
                window.hub = (await import("/smq/hubbub.js")).connect();
                await hub.publish("to/program", "hello");
            """)
            assert await within(10, heard.get()) == b"hello"


async def test_what_cannot_be_meant_is_said_at_once(open_page: OpenPage) -> None:
    async with open_page() as page:
        wrong = {
            "connect('/', { uid: 'short' })": "a uid has 6 to 255 bytes",
            "await hub.subscribe('x', take, { type: 'xml' })": "type is text, json or raw, not xml",
            "await hub.publish(undefined, 'x')": "expected a name or a number, got undefined",
            "await hub.publish('x', 'y', '\\ud800')": "expected a name or a number",
            "await hub.create('\\ud800')": "expected a name or a number",
            "await connect('/', { authenticate: 'x'.repeat(256) }).ready()": "at most 255 bytes",
        }
        for code, complaint in wrong.items():
            with pytest.raises(PageError, match=complaint):
                await page.run(code)
