/**
 * SMQ in a browser: publish, subscribe, observe, and call one another, over a WebSocket.
 *
 *     import { connect } from "/hubbub.js";
 *
 *     const hub = connect();                                 // the hub that served this file
 *     hub.subscribe("room/lamp", (text) => console.log(text));
 *     hub.publish("room/lamp", "on");
 *
 * Nothing has to be waited for: what is published or subscribed before the connection stands is
 * kept, in order. A lost connection is made again, and everything that was set up is set up again;
 * a hub that says no, or says Disconnect, is left for good.
 *
 * What travels, one message in each WebSocket message:
 *
 *     u8 type   numbers, unsigned and big-endian   the rest: a name, a text or a payload
 *
 * The answer to a call is what is published to the number that asked. SMQ has no other correlation,
 * so each open call asks from a connection of its own; these are kept for the next calls.
 *
 * No dependencies and no build step; runs in browsers, and in Node from version 22 on.
 *
 * @module hubbub
 */

/** The types of message: number, then the widths in bytes of the numbers that begin the body. */
const LAYOUTS = {
  Init: [1, 1, 4], // version, seed; the page's address
  Connect: [2, 1], // version; see `connectBody`
  Connack: [3, 1, 4], // code, own number; why not
  Subscribe: [4], // name
  Suback: [5, 1, 4], // 0 or 1 = denied, number; name
  Create: [6],
  Createack: [7, 1, 4],
  Publish: [8, 4, 4, 4], // topic, sender, sub-topic; payload
  Unsubscribe: [9, 4],
  Disconnect: [11], // text
  Ping: [12],
  Pong: [13],
  Observe: [14, 4],
  Unobserve: [15, 4],
  Change: [16, 4, 4], // topic or client, how many
  Createsub: [17],
  Createsuback: [18, 1, 4],
};
const KINDS = new Map(Object.entries(LAYOUTS).map(([kind, [type]]) => [type, kind]));

/** What each acknowledgement answers. */
const ANSWERS = { Suback: "Subscribe", Createack: "Create", Createsuback: "Createsub" };

const VERSION = 1;
const UNAVAILABLE = 2; // the only Connack code after which coming back makes sense
const QUEUE = "$queue/";
const REQUEST = "request"; // the sub-topic that makes a message to a queue a request
const ERROR = "error"; // the sub-topic of an answer that says why there is none

const WAITING_MESSAGES = 1000; // until there is a connection, or a number for their topic
const BUFFER_BYTES = 4 * 1024 * 1024; // sent, and still in the browser: the network is too slow
const FIRST_WAIT_MS = 1000; // before the first attempt to come back; doubles each time
const LONGEST_WAIT_MS = 15_000;
const ANSWER_MS = 10_000; // until a call is answered
const OPEN_CALLS = 8; // at a time, each on a connection; further ones wait for their turn
const PING_MS = 30_000; // keeps a path through routers open, and finds out that it is gone

const EMPTY = new Uint8Array(0);
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // a mark at the start is data

// Bytes

/**
 * A message as it goes over the WebSocket.
 * @param {string} kind a key of the layouts, such as "Publish"
 * @param {number[]} [numbers] as many as its layout has
 * @param {Uint8Array} [rest] what follows them
 * @returns {Uint8Array}
 */
export function pack(kind, numbers = [], rest = EMPTY) {
  const [type, ...widths] = LAYOUTS[kind];
  const size = widths.reduce((sum, width) => sum + width, 1);
  const bytes = new Uint8Array(size + rest.length);
  const view = new DataView(bytes.buffer);
  bytes[0] = type;
  let at = 1;
  for (const [index, width] of widths.entries()) {
    if (width === 1) view.setUint8(at, numbers[index]);
    else view.setUint32(at, numbers[index]);
    at += width;
  }
  bytes.set(rest, size);
  return bytes;
}

/**
 * What a message says, or undefined if it is too short or of no known type.
 * @param {ArrayBuffer} buffer one WebSocket message
 * @returns {{kind: string, numbers: number[], rest: Uint8Array} | undefined}
 */
export function unpack(buffer) {
  const view = new DataView(buffer);
  const kind = buffer.byteLength ? KINDS.get(view.getUint8(0)) : undefined;
  if (!kind) return undefined;
  const numbers = [];
  let at = 1;
  for (const width of LAYOUTS[kind].slice(1)) {
    if (at + width > buffer.byteLength) return undefined;
    numbers.push(width === 1 ? view.getUint8(at) : view.getUint32(at));
    at += width;
  }
  return { kind, numbers, rest: new Uint8Array(buffer, at) };
}

/**
 * The body of a Connect behind its version: two texts behind their lengths, then the info.
 * @param {Uint8Array} uid
 * @param {Uint8Array} credentials
 * @param {Uint8Array} info
 * @returns {Uint8Array}
 */
export function connectBody(uid, credentials, info) {
  if (uid.length < 6 || uid.length > 255) throw new RangeError("a uid has 6 to 255 bytes");
  if (credentials.length > 255) throw new RangeError("credentials have at most 255 bytes");
  return Uint8Array.of(uid.length, ...uid, credentials.length, ...credentials, ...info);
}

/** A value as payload: text as UTF-8, buffers and their views as they are, all else as JSON. */
function toBytes(data) {
  if (typeof data === "string") return encoder.encode(data);
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  if (ArrayBuffer.isView(data)) {
    return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  }
  return data === undefined ? EMPTY : encoder.encode(JSON.stringify(data));
}

/** A payload as value; "json" throws a SyntaxError for what is none. */
const READ = {
  text: (bytes) => decoder.decode(bytes),
  json: (bytes) => JSON.parse(decoder.decode(bytes)),
  raw: (bytes) => bytes,
};

function reader(type) {
  if (!Object.hasOwn(READ, type)) throw new TypeError(`type is text, json or raw, not ${type}`);
  return READ[type];
}

/** Names go to the hub and come back in its answers: text that survives this, as it is. */
function checkName(name) {
  if (typeof name !== "number" && decoder.decode(encoder.encode(name)) !== name) {
    throw new TypeError(`expected a name or a number, got ${name}`);
  }
}

/** 32 bits. */
function randomNumber() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

// The client

/**
 * What the hub refused: the connection, a topic or a sub-topic.
 * `code` is that of the Connack, 0 if the refusal was another.
 */
export class Refused extends Error {
  name = "Refused";

  constructor(text, code = 0) {
    super(text);
    this.code = code;
  }
}

/**
 * A call was answered with an error. A handler that throws it says its text to who asked; of any
 * other error who asked hears the name.
 */
export class CallFailed extends Error {
  name = "CallFailed";
}

/**
 * Where a message came from, the second argument of every callback.
 * @typedef {object} Message
 * @property {string} topic the name it was published to; "self" if it was sent to this page alone
 * @property {string} subtopic a name that this page has used, or ""
 * @property {number} sender the number of who sent it: `hub.publish(sender, …)` answers
 * @property {number} tid number of the topic
 * @property {number} subtid number of the sub-topic, 0 = none
 * @property {Uint8Array} bytes the payload as it came
 */

/**
 * A connection to a hub; `connect` makes one.
 *
 * Events: `open`; `close` (`event.detail` is `{reason, returning}`: why, and whether it will come
 * back by itself); `message` for what no callback takes (`event.detail` is the {@link Message}).
 */
export class Client extends EventTarget {
  /** "connecting", "open", or "closed" for good. */
  state = "connecting";
  /** This page's own number at the hub; others may publish to it. 0 before the first `open`. */
  etid = 0;

  // What the hub is told.
  #url;
  #uid;
  #info;
  #authenticate;
  #options;
  // The connection, and the way back to it.
  #socket;
  #firstWait;
  #wait;
  #timer;
  #pings;
  #silent = false;
  #reason;
  // What was asked for by name: all of it is asked again on every new connection.
  #asks = { Createsub: new Map(), Create: new Map(), Subscribe: new Map() };
  #topics = new Map(); // names by number, as this connection has them
  #subtopics = new Map();
  // Who is told: callbacks by topic and sub-topic, observers by topic or number.
  #callbacks = new Map();
  #observers = new Map();
  // What is to be published, in order.
  #outbox = [];
  // Clients that ask: all of them, those without a question, and the calls that wait for one.
  #callers = new Set();
  #idle = [];
  #turns = [];

  constructor(url, options = {}) {
    super();
    const { uid, info = "", authenticate = "", reconnect = true } = options;
    this.#options = options;
    this.#url = new URL(url, import.meta.url);
    this.#url.protocol = this.#url.protocol.replace("http", "ws");
    const [user, password] = [this.#url.username, this.#url.password].map(decodeURIComponent);
    this.#authenticate = authenticate || (user && `${user}:${password}`);
    this.#url.username = this.#url.password = this.#url.hash = "";
    this.#uid = toBytes(uid ?? `page-${randomNumber()}-${randomNumber()}`);
    this.#info = toBytes(info);
    this.#firstWait = this.#wait = reconnect === true ? FIRST_WAIT_MS : Number(reconnect);
    connectBody(this.#uid, EMPTY, this.#info); // throws now and not later
    this.#dial();
  }

  // Topics

  /**
   * Publish to a topic by name, or to the number of a topic or of another client.
   *
   * SMQ acknowledges no message: it may be lost with the connection.
   * @param {string | number} topic
   * @param {*} data text, a buffer or a view of one; anything else is sent as JSON
   * @param {string | number} [subtopic]
   * @returns {Promise<void>} it was given to the browser; rejected if the hub refuses the topic,
   *   if the connection is closed for good, or when 1000 messages wait for the hub already, or
   *   4 MiB for the network
   */
  publish(topic, data, subtopic = 0) {
    return new Promise((resolve, reject) => {
      const payload = toBytes(data);
      checkName(topic);
      checkName(subtopic);
      if (this.state === "closed") throw this.#reason;
      if (this.#outbox.length >= WAITING_MESSAGES) {
        throw new RangeError(`${WAITING_MESSAGES} messages wait already`);
      }
      if (this.#stands && this.#socket.bufferedAmount > BUFFER_BYTES) {
        throw new RangeError(`${BUFFER_BYTES} bytes wait for the network already`);
      }
      this.#outbox.push({ topic, subtopic, payload, resolve, reject });
      this.#flush();
    });
  }

  /**
   * Get what is published to a topic; there are no wildcards, and a name that looks like one
   * is refused.
   *
   * A topic has one callback for each sub-topic, and one without for all other messages. The topic
   * "self" means this page: what others publish to its number.
   * @param {string} topic
   * @param {(data: *, message: Message) => void} callback
   * @param {{subtopic?: string, type?: "text" | "json" | "raw"}} [options] how `data` is read;
   *   what is no JSON goes to the `message` event
   * @returns {Promise<number>} the number of the topic; rejected if the hub refuses it
   */
  async subscribe(topic, callback, { subtopic = "", type = "text" } = {}) {
    if (/(^|\/)(\+(\/|$)|#$)/.test(topic)) {
      throw new TypeError(`SMQ has no wildcards, got ${topic}: subscribe to each topic by its name`);
    }
    if (!this.#callbacks.has(topic)) this.#callbacks.set(topic, new Map());
    this.#callbacks.get(topic).set(subtopic, { callback, read: reader(type) });
    const named = subtopic && this.createsub(subtopic); // known before the first message comes
    const [number] = await Promise.all([this.#join(topic), named]);
    return number;
  }

  /**
   * Stop getting what is published to a topic, whatever its sub-topic.
   * @param {string} topic
   */
  unsubscribe(topic) {
    const ask = this.#asks.Subscribe.get(topic);
    this.#asks.Subscribe.delete(topic);
    this.#callbacks.delete(topic);
    if (ask?.number) this.#send("Unsubscribe", [ask.number]);
    ask?.resolve(0); // nobody waits any more for what was not answered yet
  }

  /**
   * The number of a topic, which the hub makes if it is new. `publish` does this by itself.
   * @param {string} topic
   * @returns {Promise<number>} rejected if the hub refuses it
   */
  async create(topic) {
    return this.#ask("Create", topic).promise;
  }

  /**
   * The number of a sub-topic; messages that carry it show its name from then on.
   * @param {string} subtopic
   * @returns {Promise<number>} rejected if the hub refuses it
   */
  async createsub(subtopic) {
    return this.#ask("Createsub", subtopic).promise;
  }

  /**
   * How many subscribe to a topic: now, and whenever that changes. For the number of a client:
   * nothing while it is there, then 0, once.
   * @param {string | number} topic
   * @param {(count: number, topic: string | number) => void} callback
   * @returns {Promise<void>} rejected if the hub refuses the topic
   */
  async observe(topic, callback) {
    this.#observers.set(topic, callback);
    const number = this.#numberOf(topic);
    if (number) this.#send("Observe", [number]);
    else await (this.#asks.Subscribe.get(topic) ?? this.#ask("Create", topic)).promise;
  }

  /**
   * Stop observing.
   * @param {string | number} topic
   */
  unobserve(topic) {
    const number = this.#numberOf(topic);
    if (this.#observers.delete(topic) && number) this.#send("Unobserve", [number]);
  }

  // Calls

  /**
   * Ask a question, and wait for the answer.
   * @param {string | number} target the number of another client, a queue (`$queue/NAME`), or a
   *   topic that somebody serves; of several answers the first counts
   * @param {*} data as in `publish`
   * @param {{subtopic?: string, type?: "text" | "json" | "raw", timeout?: number}} [options] how
   *   the answer is read; milliseconds from the question on, 10,000 if nothing is said
   * @returns {Promise<*>} the answer; rejected if none came in time, with {@link CallFailed} if
   *   the service failed
   */
  async call(target, data, { subtopic, type = "text", timeout = ANSWER_MS } = {}) {
    const read = reader(type);
    const toQueue = typeof target === "string" && target.startsWith(QUEUE);
    const how = subtopic ?? (toQueue ? REQUEST : "");
    await this.ready();
    const caller = await this.#caller();
    let more = true; // answers that may come, and must not be taken for those of the next call
    try {
      const answer = await caller.#question(target, data, how, timeout);
      more = typeof target === "string" && !toQueue;
      return read(answer);
    } finally {
      if (more) caller.close();
      this.#release(caller);
    }
  }

  /**
   * Answer what comes to a topic or a queue, or with "self" to this page. What the handler returns
   * goes to the sender; if it throws, the error is reported, and its name goes there.
   * @param {string} topic
   * @param {(data: *, message: Message) => *} handler may be async; returns data as in `publish`
   * @param {{subtopic?: string, type?: "text" | "json" | "raw"}} [options] as in `subscribe`
   * @returns {Promise<number>} the number of the topic; rejected if the hub refuses it
   */
  serve(topic, handler, options) {
    const answer = async (data, message) => {
      const { sender, subtid } = message;
      try {
        await this.publish(sender, await handler(data, message), subtid);
      } catch (error) {
        console.error(`a call to ${topic} failed:`, error);
        this.publish(sender, failure(error), ERROR).catch(() => {}); // no connection: no answer
      }
    };
    return this.subscribe(topic, answer, options);
  }

  async #caller() {
    this.#idle = this.#idle.filter((caller) => this.#callers.has(caller));
    if (!this.#idle.length && this.#callers.size >= OPEN_CALLS) {
      return new Promise((resolve, reject) => this.#turns.push({ resolve, reject }));
    }
    return this.#idle.pop() ?? this.#newCaller();
  }

  #newCaller() {
    const caller = new Client(this.#url, { ...this.#options, uid: undefined, reconnect: false });
    caller.#authenticate = this.#authenticate;
    this.#callers.add(caller);
    caller.addEventListener("close", () => this.#callers.delete(caller));
    return caller;
  }

  /** A call is over: the next one takes its client, if that can be used again. */
  #release(caller) {
    const usable = this.#callers.has(caller);
    if (this.#turns.length) this.#turns.shift().resolve(usable ? caller : this.#newCaller());
    else if (usable) this.#idle.push(caller);
  }

  /** The payload of what is published to our number next, by whom it was asked if that is known. */
  async #question(target, data, subtopic, timeout) {
    const over = new AbortController();
    let timer;
    try {
      return await new Promise((resolve, reject) => {
        const late = () => reject(new Error(`no answer within ${timeout} ms`));
        timer = setTimeout(late, timeout);
        this.addEventListener("close", () => reject(this.#reason), { signal: over.signal });
        const callback = (bytes, message) => {
          if (typeof target !== "string" && message.sender !== target) return;
          const failed = message.subtopic === ERROR && subtopic !== ERROR;
          if (failed) reject(new CallFailed(decoder.decode(bytes)));
          else resolve(bytes);
        };
        this.#callbacks.set("self", new Map([["", { callback, read: READ.raw }]]));
        this.createsub(ERROR).catch(() => {}); // refused, an error is an answer like any other
        this.publish(target, data, subtopic).catch(reject);
      });
    } finally {
      clearTimeout(timer);
      over.abort();
    }
  }

  // The connection

  /**
   * Wait for the connection.
   * @returns {Promise<void>} kept as soon as it stands; rejected when it is closed for good
   */
  ready() {
    return new Promise((resolve, reject) => {
      const look = () => {
        if (this.state === "open") resolve();
        else if (this.state === "closed") reject(this.#reason);
        else return;
        this.removeEventListener("open", look);
        this.removeEventListener("close", look);
      };
      this.addEventListener("open", look);
      this.addEventListener("close", look);
      look();
    });
  }

  /** Leave for good, and say so to the hub. */
  close() {
    this.#send("Disconnect");
    this.#end(new Error("the page closed the connection"));
  }

  #dial() {
    const socket = (this.#socket = new WebSocket(this.#url));
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => this.#take(event.data);
    socket.onclose = (event) => this.#lost(event.reason);
  }

  get #stands() {
    return this.state === "open" && this.#socket.readyState === WebSocket.OPEN;
  }

  #send(kind, numbers, rest) {
    if (this.#stands) this.#socket.send(pack(kind, numbers, rest));
  }

  /** Let go of the socket: whatever it still says is not for us. */
  #drop() {
    clearInterval(this.#pings);
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
  }

  #lost(reason) {
    if (!this.#wait) {
      this.#end(new Error(reason || "the connection was lost"));
      return;
    }
    this.#drop();
    this.state = "connecting";
    // Not all pages of a hub that was away at the same moment.
    this.#timer = setTimeout(() => this.#dial(), this.#wait * (0.5 + Math.random() / 2));
    this.#wait = Math.min(this.#wait * 2, Math.max(LONGEST_WAIT_MS, this.#firstWait));
    this.#tell("close", { reason, returning: true });
  }

  #end(error) {
    if (this.state === "closed") return;
    this.#drop();
    clearTimeout(this.#timer);
    this.state = "closed";
    this.#reason = error;
    const asks = Object.values(this.#asks).flatMap((asked) => [...asked.values()]);
    for (const waiting of [...asks, ...this.#outbox.splice(0), ...this.#turns.splice(0)]) {
      waiting.reject(error); // does nothing to what was settled before
    }
    for (const caller of this.#callers) caller.close();
    this.#tell("close", { reason: error.message, returning: false });
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  /** A path that went away says nothing by itself: no answer to a Ping means that it is gone. */
  #ping() {
    if (this.#silent) this.#lost("the hub is silent");
    else this.#send("Ping");
    this.#silent = true;
  }

  // Names and numbers

  /** Ask the hub for the number of a name, once; the answer is kept, and asked for again. */
  #ask(kind, name) {
    let ask = this.#asks[kind].get(name);
    if (!ask) {
      checkName(name);
      ask = { number: 0, accepted: false };
      ask.promise = new Promise((resolve, reject) => Object.assign(ask, { resolve, reject }));
      ask.promise.catch(() => {}); // who asked has a promise of their own
      if (this.state === "closed") {
        ask.reject(this.#reason);
        return ask;
      }
      this.#asks[kind].set(name, ask);
      this.#send(kind, [], encoder.encode(name));
    }
    return ask;
  }

  async #join(topic) {
    if (topic !== "self") return this.#ask("Subscribe", topic).promise;
    await this.ready();
    return this.etid;
  }

  /** 0 while it is not known. */
  #numberOf(topic) {
    if (typeof topic === "number") return topic;
    if (topic === "self") return this.etid;
    return this.#asks.Subscribe.get(topic)?.number || this.#asks.Create.get(topic)?.number || 0;
  }

  /** Send what may be sent: in order, and nothing past a name whose number is still to come. */
  #flush() {
    while (this.#stands && this.#outbox.length) {
      const { topic, subtopic, payload, resolve } = this.#outbox[0];
      const tid = this.#numberOf(topic);
      const named = typeof subtopic === "string" && subtopic;
      const subtid = named ? this.#ask("Createsub", named).number : Number(subtopic);
      if (!tid && !this.#asks.Subscribe.has(topic)) this.#ask("Create", topic);
      if (!tid || (subtopic && !subtid)) return;
      this.#outbox.shift();
      this.#send("Publish", [tid, this.etid, subtid], payload);
      resolve();
    }
  }

  // What the hub says

  #take(data) {
    const message = unpack(data);
    this.#silent = false;
    if (!message) return;
    const { kind, numbers, rest } = message;
    switch (kind) {
      case "Publish":
        return this.#deliver(...numbers, rest);
      case "Change":
        return this.#changed(...numbers);
      case "Suback":
      case "Createack":
      case "Createsuback":
        return this.#acknowledged(ANSWERS[kind], ...numbers, decoder.decode(rest));
      case "Init":
        return void this.#introduce(numbers[1], decoder.decode(rest));
      case "Connack":
        return this.#welcomed(...numbers, decoder.decode(rest));
      case "Ping":
        return this.#send("Pong");
      case "Disconnect":
        return this.#end(new Refused(decoder.decode(rest) || "the hub ended the connection"));
    }
  }

  async #introduce(seed, address) {
    const socket = this.#socket;
    const authenticate = this.#authenticate;
    try {
      const shown =
        typeof authenticate === "function" ? await authenticate({ seed, address }) : authenticate;
      const body = connectBody(this.#uid, toBytes(shown), this.#info);
      if (socket.readyState === WebSocket.OPEN) socket.send(pack("Connect", [VERSION], body));
    } catch (error) {
      this.#end(error);
    }
  }

  #welcomed(code, number, text) {
    if (code === UNAVAILABLE) return this.#lost(text);
    if (code) return this.#end(new Refused(text || `refused with code ${code}`, code));
    this.etid = number;
    this.state = "open";
    this.#wait = this.#firstWait;
    this.#pings = setInterval(() => this.#ping(), PING_MS);
    this.#setUp();
    this.#flush();
    this.#tell("open");
  }

  /** Ask for everything, again if need be: the numbers of another connection mean nothing here. */
  #setUp() {
    this.#topics.clear();
    this.#subtopics.clear();
    for (const [kind, asks] of Object.entries(this.#asks)) {
      for (const [name, ask] of asks) {
        ask.number = 0;
        this.#send(kind, [], encoder.encode(name));
      }
    }
    for (const topic of this.#observers.keys()) {
      if (typeof topic === "number") this.#send("Observe", [topic]);
    }
  }

  #acknowledged(kind, denied, number, name) {
    const ask = this.#asks[kind].get(name);
    if (!ask) {
      // Unsubscribed before the hub had answered.
      if (kind === "Subscribe" && !denied) this.#send("Unsubscribe", [number]);
    } else if (denied) {
      this.#denied(kind, name, ask);
    } else {
      const observed = kind !== "Createsub" && this.#observers.has(name) && !this.#numberOf(name);
      (kind === "Createsub" ? this.#subtopics : this.#topics).set(number, name);
      ask.number = number;
      ask.accepted = true;
      ask.resolve(number);
      if (observed) this.#send("Observe", [number]);
    }
    this.#flush();
  }

  #denied(kind, name, ask) {
    const error = new Refused(`the hub refused to ${kind.toLowerCase()} ${JSON.stringify(name)}`);
    this.#asks[kind].delete(name);
    if (ask.accepted) console.error(error.message); // on an earlier connection: nobody waits now
    ask.reject(error);
    if (kind === "Subscribe") return;
    const needs = kind === "Create" ? "topic" : "subtopic";
    for (const item of this.#outbox) if (item[needs] === name) item.reject(error);
    this.#outbox = this.#outbox.filter((item) => item[needs] !== name);
  }

  #deliver(tid, sender, subtid, bytes) {
    const topic = tid === this.etid ? "self" : (this.#topics.get(tid) ?? "");
    const subtopic = this.#subtopics.get(subtid) ?? "";
    const message = { topic, subtopic, sender, tid, subtid, bytes };
    const callbacks = this.#callbacks.get(topic);
    const found = callbacks?.get(subtopic) ?? callbacks?.get("");
    let data;
    try {
      data = found?.read(bytes);
    } catch {
      // Not what the subscriber wants; the event has the bytes.
    }
    if (data === undefined) this.#tell("message", message);
    else found.callback(data, message);
  }

  #changed(number, count) {
    const name = this.#topics.get(number);
    const topic = this.#observers.has(number) ? number : name;
    const callback = this.#observers.get(topic);
    if (name === undefined && !count) this.#observers.delete(number); // a client is gone once
    callback?.(count, topic);
  }
}

/** What who asked is told of a handler that failed: a stranger, so nothing of its insides. */
function failure(error) {
  return error instanceof CallFailed ? error.message : `the handler failed: ${error?.name ?? "Error"}`;
}

/**
 * Connect to a hub. Returns at once, and never throws for what the network does.
 * @param {string | URL} [url] `ws`, `wss`, `http` or `https`, or a path at the hub that served this
 *   file; where this file lies if nothing is said. `USER:PASSWORD@` before the host are credentials
 * @param {object} [options]
 * @param {string | Uint8Array} [options.uid] who this is, 6 to 255 bytes; random for each client if
 *   nothing is said. Of two with the same uid the older is told to go
 * @param {string} [options.info] text for the program behind the hub
 * @param {string | Uint8Array | Function} [options.authenticate] the credentials, `USER:PASSWORD`
 *   for a hub with a password file; or a function of `{seed, address}`, the hub's random number and
 *   our address, that makes them within 4 seconds; it may be async
 * @param {boolean | number} [options.reconnect] `false`, or milliseconds before the first attempt
 *   to come back (1000); the pause doubles up to 15 s
 * @returns {Client}
 */
export function connect(url = "./", options = {}) {
  return new Client(url, options);
}
