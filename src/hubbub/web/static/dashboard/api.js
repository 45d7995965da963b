// What the page asks the hub. The cookie says who asks; the word says that it is this page (CSRF).

export const session = { user: "", csrf: "", token: false, checks: false };

/** The hub said no. `status` 0: it said nothing at all. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      ...options, signal: options.signal ?? AbortSignal.timeout(10_000),
      headers: { "hubbub-csrf": session.csrf, ...options.headers },
    });
  } catch (error) {
    throw new Refused(0, error.name === "TimeoutError" ? "no answer within 10 s" : "no connection");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let said;
  try { said = JSON.parse(text); } catch { said = {}; }
  const refused = new Refused(answer.status, said.detail ?? said.error ?? (text.trim() || `HTTP ${answer.status}`));
  refused.said = said;
  throw refused;
}

/** What stands for a name in a query. One that is no text has its bytes in `exact`, written so already. */
export const named = (row, key) => (row.exact?.[key] === undefined ? row[key] : { exact: row.exact[key] });
export const spelled = (value) => value?.exact ?? encodeURIComponent(value);
export const query = (given) => Object.entries(given).map(([key, value]) => `${key}=${spelled(value)}`).join("&");
export const get = async (path, given) =>
  (await ask(`/api/v1/${path}${given ? `?${query(given)}` : ""}`)).json();
/** What was published to a topic, the newest first. */
export async function history(topic, last) {
  const path = spelled(topic).replaceAll("%2F", "/");
  const said = await (await ask(`/api/v1/history/${path}?${query({ last })}`)).json();
  return { ...said, messages: said.messages.reverse() };
}

export const remove = async (path, given) =>
  (await ask(`/api/v1/${path}?${query(given)}`, { method: "DELETE" })).json();

export async function publish(line) {
  return (await ask("/api/v1/publish", { method: "POST", body: JSON.stringify(line) })).json();
}

/** Who we are. Throws Refused with `said.wants` if a login is needed. */
export async function resume() {
  Object.assign(session, await (await ask("/admin/session")).json());
}

export async function login(given) {
  const answer = await ask("/admin/login", {
    method: "POST", body: JSON.stringify(given), headers: { "content-type": "application/json" },
  });
  Object.assign(session, await answer.json());
}

export async function logout() {
  await ask("/admin/logout", { method: "POST" });
  session.csrf = "";
}

/** Events of one topic. `close()` ends them; `heard(data)` gets each, `state(text)` how it is. */
export function tail(topic, heard, state) {
  const source = new EventSource(`/api/v1/tail?${query({ topic })}`);
  source.onopen = () => state("live");
  source.onmessage = ({ data }) => heard(JSON.parse(data));
  source.addEventListener("over", () => { source.close(); state("over: log in again"); });
  source.onerror = () => state(source.readyState === EventSource.CLOSED ? "refused" : "lost, trying again");
  return source;
}
