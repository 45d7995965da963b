// The page: who is logged in, which view is shown, and how fresh it is.
//
// A view is a module with a class: `element` is shown, `refresh()` asks the hub and renews it (at
// once and every two seconds), `stop()` ends what it began. It never asks while nobody looks.

import { login, logout, resume, session } from "./api.js";
import { clock, el, say } from "./show.js";
import { Bridges } from "./views/bridges.js";
import { Calls } from "./views/calls.js";
import { Clients } from "./views/clients.js";
import { Journal } from "./views/journal.js";
import { Overview } from "./views/overview.js";
import { Pipeline } from "./views/pipeline.js";
import { Queues } from "./views/queues.js";
import { Security } from "./views/security.js";
import { Topics } from "./views/topics.js";

const SECONDS = 2;
const PATIENCE = 3; // seconds without an answer, until that is said: a busy hub takes one or two
const VIEWS = {
  overview: ["Overview", Overview], clients: ["Clients", Clients], topics: ["Topics", Topics],
  queues: ["Queues", Queues], calls: ["Calls", Calls], journal: ["Journal", Journal],
  pipeline: ["Pipeline", Pipeline], bridges: ["Bridges", Bridges], security: ["Security", Security],
};

// Light or dark: as the machine says, until somebody chooses.
const wish = matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const chosen = localStorage.getItem("hubbub-theme");
  document.documentElement.classList.toggle("dark", chosen ? chosen === "dark" : wish.matches);
  shell?.view?.recolour?.();
}
function turn() {
  localStorage.setItem("hubbub-theme", document.documentElement.classList.contains("dark") ? "light" : "dark");
  paint();
}
wish.addEventListener("change", paint);

let shell;

class Shell {
  constructor() {
    this.links = Object.entries(VIEWS).map(([name, [title]]) => el("a", { href: `#/${name}` }, title));
    this.title = el("h1");
    this.when = el("span", { class: "when dim" });
    this.notice = el("p", { class: "notice", role: "alert", hidden: true });
    this.place = el("div", { class: "view" });
    const who = session.user || (session.token ? "by the API's token" : "");
    this.element = el("div", { class: "shell" },
      el("div", { class: "side" },
        el("div", { class: "name" }, el("img", { src: "/admin/icon.svg", alt: "" }), "Hubbub"),
        el("nav", { "aria-label": "Views" }, ...this.links),
        el("div", { class: "who" }, who ? el("span", {}, who) : undefined,
          el("button", { type: "button", onclick: turn }, "Light / dark"),
          session.user || session.token ? el("button", { type: "button", onclick: leave }, "Log out") : undefined,
          session.checks && !session.user && !session.token
            ? el("button", { type: "button", onclick: () => ask("password") }, "Log in") : undefined)),
      el("main", { class: "content" },
        el("div", { class: "head" }, this.title, this.when), this.notice, this.place));
    this.moved = () => this.open();
    addEventListener("hashchange", this.moved);
    document.addEventListener("visibilitychange", this.seen = () => { if (!document.hidden) this.again(0); });
  }

  open() {
    const [, wanted = ""] = location.hash.split("/"), name = wanted in VIEWS ? wanted : "overview";
    if (this.name === name) return;
    const [title, View] = VIEWS[name];
    this.view?.stop?.();
    this.name = name;
    say(this.title, title);
    document.title = `${title} · Hubbub`;
    for (const link of this.links) {
      const here = link.hash === `#/${name}`;
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      if (here) link.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    this.view = new View(() => this.again(0));
    this.place.replaceChildren(this.view.element);
    this.again(0);
  }

  again(seconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), seconds * 1000);
  }

  async refresh() {
    const view = this.view;
    if (document.hidden || !view || this.busy === view) return;
    this.busy = view;
    this.asked ??= Date.now();
    const watch = setInterval(() => this.silent(), 1000);
    try {
      await view.refresh();
      if (view === this.view) this.fresh();
    } catch (error) {
      if (view === this.view) this.lost(error);
    } finally {
      clearInterval(watch);
      if (this.busy === view) this.busy = undefined;
    }
    if (shell === this) this.again(SECONDS);
  }

  fresh() {
    this.at = Date.now() * 1000;
    this.asked = undefined;
    this.notice.hidden = true;
    this.place.classList.remove("stale");
    this.place.dataset.fresh = this.name;
    say(this.when, `as of ${clock(this.at, false)}`);
  }

  lost(error) {
    if (error.status === 401) return begin();
    if (error.status === undefined) console.error(error);
    if (error.status) this.asked = undefined;
    const what = error.status === 0 ? "The hub does not answer" : "The hub refuses";
    this.stale(`${what}: ${error.message}. Asked again every ${SECONDS} s.`);
  }

  /** The hub is there, and says nothing: stopped, or far too busy. */
  silent() {
    const seconds = Math.round((Date.now() - this.asked) / 1000);
    if (seconds >= PATIENCE) this.stale(`The hub does not answer: nothing for ${seconds} s.`);
  }

  /** What is shown is old from now on, and looks so. */
  stale(why) {
    this.place.classList.add("stale");
    delete this.place.dataset.fresh;
    say(this.notice, why);
    this.notice.hidden = false;
    if (this.at) say(this.when, `as of ${clock(this.at, false)}, not now`);
  }

  stop() {
    clearTimeout(this.timer);
    this.view?.stop?.();
    removeEventListener("hashchange", this.moved);
    document.removeEventListener("visibilitychange", this.seen);
  }
}

function show(element) {
  shell?.stop();
  shell = undefined;
  document.body.replaceChildren(element);
}

function enter() {
  const made = new Shell();
  show(made.element);
  shell = made;
  shell.open();
}

function ask(wants, said = "") {
  const token = wants === "token";
  const user = el("input", { name: "user", autocomplete: "username", required: true });
  const secret = el("input", { name: "secret", type: "password", autocomplete: "current-password", required: true });
  const trouble = el("p", { class: "bad", role: "alert" }, said);
  const button = el("button", { class: "first" }, "Log in");
  const form = el("form", { class: "form", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    say(trouble, "");
    try {
      await login(token ? { token: secret.value } : { user: user.value, password: secret.value });
      enter();
    } catch (error) {
      say(trouble, error.message);
      secret.value = "";
      secret.focus();
    } finally {
      button.disabled = false;
    }
  } },
  token ? undefined : el("label", {}, "User", user),
  el("label", {}, token ? "Token of the API (api.token)" : "Password", secret), button, trouble);
  show(el("main", { class: "login" },
    el("h1", {}, el("img", { src: "/admin/icon.svg", alt: "" }), "Hubbub"), form));
  (token ? secret : user).focus();
}

async function leave() {
  try { await logout(); } catch { /* then it was over before */ }
  begin();
}

async function begin() {
  try {
    await resume();
    enter();
  } catch (error) {
    const wants = error.said?.wants;
    if (wants === "nothing") {
      try {
        await login({});
        return enter();
      } catch (other) { return ask("password", other.message); }
    }
    if (wants) return ask(wants);
    show(el("main", { class: "login" }, el("p", { class: "bad", role: "alert" },
      `The hub does not answer: ${error.message}. Asked again every ${SECONDS} s.`)));
    setTimeout(begin, SECONDS * 1000);
  }
}

paint();
begin();
