// Run by test_mqtt_js.py: node mqtt_js.mjs DIRECTORY URL AUTHORITY SCENARIO. Prints what it saw as
// one JSON object. DIRECTORY is where npm put MQTT.js.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [directory, url, authority, scenario] = process.argv.slice(2);
const mqtt = createRequire(directory + "/")("mqtt");

const made = [];

async function client(clientId, protocolVersion, more = {}) {
  const one = await mqtt.connectAsync(url, {
    clientId, protocolVersion, ca: readFileSync(authority), reconnectPeriod: 0, ...more,
    ...(protocolVersion === 3 && { protocolId: "MQIsdp" }),
  });
  one.heard = [];
  one.on("message", (topic, payload, packet) => {
    const { qos, retain, properties } = packet;
    one.heard.push({ topic, payload: payload.toString(), qos, retain, properties });
  });
  made.push(one);
  return one;
}

async function until(condition, what) {
  for (let waited = 0; !condition(); waited += 10) {
    if (waited > 15000) throw new Error("waited in vain for " + what);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const heard = (one, count) =>
  until(() => one.heard.length >= count, `${count} messages`).then(() => one.heard.splice(0));

const scenarios = {
  // Every QoS in order, large payloads, retained messages set, seen and cleared.
  async messages(version) {
    const ann = await client("ann", version);
    const bob = await client("bob", version);
    const granted = await ann.subscribeAsync({ "a/+": { qos: 2 }, b: { qos: 0 } });
    for (const qos of [0, 1, 2])
      for (let n = 0; n < 10; n++) await bob.publishAsync("a/b", `${qos} ${n}`, { qos });
    const small = await heard(ann, 30);
    await bob.publishAsync("b", "x".repeat(300000), { qos: 2 });
    const [large] = await heard(ann, 1);
    await bob.publishAsync("r/1", "kept", { qos: 1, retain: true });
    await bob.publishAsync("r/2", "gone", { qos: 1, retain: true });
    await bob.publishAsync("r/2", "", { qos: 1, retain: true });
    await ann.subscribeAsync("r/#", { qos: 1 });
    const retained = await heard(ann, 1);
    await ann.unsubscribeAsync("a/+");
    await bob.publishAsync("a/b", "unheard", { qos: 1 });
    await bob.publishAsync("b", "last", { qos: 1 });
    const last = await heard(ann, 1);
    return {
      granted: granted.map((one) => one.qos), last: last.map((one) => one.payload),
      small: small.map(({ payload, qos }) => `${payload} q${qos}`),
      large: [large.payload.length, large.qos], retained: retained.map((one) => one.payload),
    };
  },

  // A will, a session that waits, a takeover.
  async sessions(version) {
    const lasting = { clean: false, ...(version === 5 && { properties: { sessionExpiryInterval: 100 } }) };
    const ann = await client("ann", version, lasting);
    await ann.subscribeAsync(["a", "w"], { qos: 2 });
    const will = { topic: "w", payload: Buffer.from("gone"), qos: 1, retain: true };
    const bob = await client("bob", version, { will });
    bob.on("error", () => {});
    bob.stream.destroy();
    const [last] = await heard(ann, 1);
    await ann.endAsync();
    const cy = await client("cy", version);
    for (const qos of [0, 1, 2]) await cy.publishAsync("a", `q${qos}`, { qos });
    let present = null;
    const again = mqtt.connect(url, {
      clientId: "ann", protocolVersion: version, ca: readFileSync(authority), reconnectPeriod: 0,
      ...lasting, ...(version === 3 && { protocolId: "MQIsdp" }),
    });
    made.push(again);
    again.heard = [];
    again.on("message", (topic, payload) => again.heard.push(payload.toString()));
    again.on("connect", (packet) => { present = packet.sessionPresent; });
    await until(() => again.heard.length >= 2, "what came meanwhile");
    let closed = false;
    again.on("close", () => { closed = true; });
    await client("ann", version);
    await until(() => closed, "the takeover");
    return { will: last.payload, present, waited: again.heard };
  },

  // What only 5.0 has.
  async modern() {
    const ann = await client("ann", 5, {
      properties: { topicAliasMaximum: 5, receiveMaximum: 3, requestResponseInformation: true },
    });
    const bob = await client("bob", 5);
    await ann.subscribeAsync("a/#", { qos: 1, nl: true, rap: true, properties: { subscriptionIdentifier: 7 } });
    await ann.subscribeAsync("a/b", { qos: 0, rh: 2, properties: { subscriptionIdentifier: 9 } });
    const properties = {
      payloadFormatIndicator: true, messageExpiryInterval: 60, contentType: "text/plain",
      responseTopic: "answers", correlationData: Buffer.from("42"), userProperties: { k: ["1", "2"] },
    };
    await bob.publishAsync("a/b", "asked", { qos: 1, retain: true, properties });
    await bob.publishAsync("a/b", "again", { qos: 1 });
    const [asked, again] = await heard(ann, 2);
    await ann.publishAsync("a/c", "own", { qos: 1 });
    await bob.publishAsync("a/d", "bob's", { qos: 1 });
    const [others] = await heard(ann, 1);
    asked.properties.correlationData = asked.properties.correlationData.toString();
    const share = [];
    for (const name of ["m1", "m2"]) {
      const member = await client(name, 5);
      await member.subscribeAsync("$share/g/s", { qos: 1 });
      share.push(member);
    }
    for (let n = 0; n < 10; n++) await bob.publishAsync("s", `${n}`, { qos: 1 });
    await until(() => share[0].heard.length + share[1].heard.length === 10, "the shares");
    let reason = null;
    bob.on("disconnect", (packet) => { reason = packet.reasonCode; });
    await client("bob", 5);
    await until(() => reason !== null, "the reason of the takeover");
    return { asked, again: again.payload, others: others.payload, reason,
      shares: share.map((one) => one.heard.length) };
  },
};

const [name, version] = scenario.split(":");
const saw = await scenarios[name](Number(version));
process.stdout.write(JSON.stringify(saw) + "\n");
await Promise.all(made.map((one) => one.endAsync(true)));
process.exit(0);
