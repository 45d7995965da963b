/** The types of hubbub.js, for editors and TypeScript; what each thing does is said there. */

/** Text as UTF-8, buffers and their views as they are, anything else as JSON. */
export type Data = string | ArrayBuffer | ArrayBufferView | number | boolean | null | object;

/** How a payload is read: as a string, as JSON, or as the bytes that came. */
export type Read = "text" | "json" | "raw";

/** What a payload is then. JSON may be anything. */
export type As<T extends Read> = T extends "text" ? string : T extends "raw" ? Uint8Array : unknown;

/** Where a message came from, the second argument of every callback. */
export interface Message {
  /** The name it was published to; "self" if it was sent to this page alone. */
  readonly topic: string;
  /** A name that this page has used, or "". */
  readonly subtopic: string;
  /** The number of who sent it: `hub.publish(sender, …)` answers. */
  readonly sender: number;
  readonly tid: number;
  /** 0 = none. */
  readonly subtid: number;
  /** The payload as it came. */
  readonly bytes: Uint8Array;
}

/** Why a connection is over, and whether it will come back by itself. */
export interface Closed {
  readonly reason: Error;
  readonly returning: boolean;
}

export interface Options {
  /** Who this is, 6 to 255 bytes; random if nothing is said. */
  uid?: string | Uint8Array;
  /** Text for the program behind the hub. */
  info?: string;
  /** `USER:PASSWORD`, or what makes the credentials within 4 seconds. */
  authenticate?:
    | string
    | Uint8Array
    | ((hub: {
        seed: number;
        address: string;
      }) => string | Uint8Array | Promise<string | Uint8Array>);
  /** `false`, or milliseconds before the first attempt to come back (1000). */
  reconnect?: boolean | number;
}

export interface SubscribeOptions<T extends Read> {
  subtopic?: string;
  type?: T;
}

export interface CallOptions<T extends Read> extends SubscribeOptions<T> {
  /** Milliseconds, 10,000 if nothing is said. */
  timeout?: number;
}

export interface ClientEvents {
  open: Event;
  close: CustomEvent<Closed>;
  message: CustomEvent<Message>;
}

/** What the hub refused; `code` is that of the Connack, 0 if the refusal was another. */
export class Refused extends Error {
  constructor(text: string, code?: number);
  readonly code: number;
}

/** A call was answered with an error; thrown by a handler it says its text to who asked. */
export class CallFailed extends Error {}

export class Client extends EventTarget {
  constructor(url: string | URL, options?: Options);
  readonly state: "connecting" | "open" | "closed";
  /** This page's own number at the hub, 0 before the first `open`. */
  readonly etid: number;
  publish(topic: string | number, data?: Data, subtopic?: string | number): Promise<void>;
  subscribe<T extends Read = "text">(
    topic: string,
    callback: (data: As<T>, message: Message) => unknown,
    options?: SubscribeOptions<T>,
  ): Promise<number>;
  unsubscribe(topic: string): void;
  create(topic: string): Promise<number>;
  createsub(subtopic: string): Promise<number>;
  observe<T extends string | number>(
    topic: T,
    callback: (count: number, topic: T) => unknown,
  ): Promise<void>;
  unobserve(topic: string | number): void;
  call<T extends Read = "text">(
    target: string | number,
    data?: Data,
    options?: CallOptions<T>,
  ): Promise<As<T>>;
  serve<T extends Read = "text">(
    topic: string,
    handler: (data: As<T>, message: Message) => Data | undefined | Promise<Data | undefined>,
    options?: SubscribeOptions<T>,
  ): Promise<number>;
  ready(): Promise<void>;
  close(): void;
  addEventListener<K extends keyof ClientEvents>(
    type: K,
    listener: (event: ClientEvents[K]) => unknown,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

/** A client of the hub at `url`; without one, of the hub that served this file. */
export function connect(url?: string | URL, options?: Options): Client;

/** The bytes of one message, and back: for tests of other implementations. */
export function pack(kind: string, numbers?: number[], rest?: Uint8Array): Uint8Array;
export function unpack(
  buffer: ArrayBuffer,
): { kind: string; numbers: number[]; rest: Uint8Array } | undefined;
export function connectBody(
  uid: Uint8Array,
  credentials: Uint8Array,
  info: Uint8Array,
): Uint8Array;
