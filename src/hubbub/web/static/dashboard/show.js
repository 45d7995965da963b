// How things are shown: elements, and numbers in words. What comes from clients becomes text only.

// What does not show, or turns what follows around: with it two names look the same.
const UNSEEN = /[\p{Cc}\p{Cf}\u034f\u2028\u2029]/gu;
const READ = "\n\t\u200c\u200d"; // but a payload has lines, and joins letters of some scripts

const spelt = (one) => {
  const code = one.codePointAt(0), [mark, digits] = code < 256 ? ["x", 2] : code < 65536 ? ["u", 4] : ["U", 8];
  return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
};
/** As the commands show it on a terminal: U+200B is \\u200b. */
export const seen = (text) => String(text).replace(UNSEEN, spelt);
const readable = (text) => text.replace(UNSEEN, (one) => (READ.includes(one) ? one : spelt(one)));

/** An element. `given`: its properties; those with a dash are attributes, `on…` are listeners. */
export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && !name.includes("-")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null)
    .map((child) => (child instanceof Node ? child : seen(child))));
  return made;
}

/** Set it only where it is another: what stays is not painted again, and stays selected. */
export function say(element, text) {
  const words = seen(text);
  if (element.textContent !== words) element.textContent = words;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });

export function number(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  if (value === 0 || Math.abs(value) >= 100) return whole.format(value);
  return (Math.abs(value) < 1 ? exact : tenth).format(value);
}

export function bytes(value) {
  if (!value) return "0 B";
  const step = Math.min(4, Math.max(0, Math.floor(Math.log10(value) / 3)));
  return `${number(value / 1000 ** step)} ${["B", "kB", "MB", "GB", "TB"][step]}`;
}

export function span(seconds) {
  if (seconds < 60) return `${number(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (minutes < 60) return `${minutes} min`;
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export const rate = (value) => `${number(value)}/s`;
export const ms = (value) => `${number(value)} ms`;

/** Microseconds since 1970 as the clock here shows them; 0 is never. */
export function clock(time, day = true) {
  if (!time) return "never";
  const date = new Date(time / 1000), two = (part) => String(part).padStart(2, "0");
  const hours = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return day ? `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${hours}` : hours;
}

/** The same, without the day if that is today. */
export const when = (time) => clock(time, new Date(time / 1000).toDateString() !== new Date().toDateString());

export function facts(pairs) {
  return el("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [
    el("dt", {}, name), el("dd", {}, value instanceof Node ? value : String(value)),
  ]));
}

/** A button for what cannot be taken back: asked twice. `really()` says what will be; `trouble` is where it says why not. */
export function twice(label, really, act, trouble) {
  let sure;
  const button = el("button", { type: "button", onclick: async () => {
    if (!sure) {
      sure = setTimeout(calm, 5_000);
      say(button, really());
      return;
    }
    calm();
    try {
      await act();
      say(trouble, "");
    } catch (error) {
      say(trouble, error.message);
    }
  } }, label);
  function calm() {
    clearTimeout(sure);
    sure = undefined;
    say(button, label);
  }
  return button;
}

export function panel(title, ...children) {
  return el("section", { class: "panel" }, el("h2", {}, ...[title].flat()), ...children);
}

/** What a message carries, so that a person can read it. */
export function payload(message) {
  let text = message.text;
  if (text === undefined && message.base64 === undefined) text = "(too large to be shown, or it cannot be read now)";
  else if (text === undefined) text = hex(message.base64);
  else try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* as it is */ }
  const cut = message.size > 16384 ? `\n… ${bytes(message.size)} in all` : "";
  return el("pre", { class: "payload", tabIndex: 0, textContent: (text === "" ? "(empty)" : readable(text)) + cut });
}

function hex(base64) {
  const all = [...atob(base64)].slice(0, 1024).map((one) => one.charCodeAt(0).toString(16).padStart(2, "0"));
  return all.map((one, at) => one + ((at + 1) % 16 ? " " : "\n")).join("");
}
