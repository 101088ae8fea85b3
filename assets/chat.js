// The view of a run in a chat (chat.html). The client of MCP Apps that shows it passes messages both ways, as the
// specification of 2026-01-26 says: https://github.com/modelcontextprotocol/ext-apps

import { make, part } from "./stage/core.js";
import { stage } from "./stage/stage.js";

/** @import { Packed } from "./types.d.ts" */

/** @typedef {{ id?: number, method?: string, params?: any, result?: any, error?: { message: string } }} Message */

/** Functions that pass messages to the client: `ask` awaits an answer, `tell` expects none. */
function client(/** @type {Record<string, (params: any) => void>} */ heard) {
  /** @type {Map<number, { resolve: (result: any) => void, reject: (problem: Error) => void }>} */
  const waiting = new Map();
  let last = 0;
  const send = (/** @type {Message} */ message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");

  addEventListener("message", ({ source, data }) => {
    if (source !== parent || data?.jsonrpc !== "2.0") return;
    const { id, method, params, result, error } = /** @type {Message} */ (data);
    if (method && id === undefined) return heard[method]?.(params);
    if (method) return send({ id, result: {} }); // a ping, or the view is about to go
    const asked = waiting.get(Number(id));
    waiting.delete(Number(id));
    if (error) asked?.reject(new Error(error.message));
    else asked?.resolve(result);
  });

  return {
    tell: (/** @type {string} */ method, params = {}) => send({ method, params }),
    /** @type {(method: string, params: object) => Promise<any>} */
    ask: (method, params) =>
      new Promise((resolve, reject) => {
        waiting.set(++last, { resolve, reject });
        send({ id: last, method, params });
      }),
  };
}

export async function chat() {
  const { ask, tell } = client({
    "ui/notifications/tool-result": (result) => void show(result).catch(say),
    "ui/notifications/tool-cancelled": () => say("The run was stopped."),
    "ui/notifications/host-context-changed": follow,
  });
  /** @type {{ hostContext?: any }} */
  let host = {};

  function say(/** @type {unknown} */ words) {
    part("#said").textContent = words instanceof Error ? words.message : String(words);
    part("#said").hidden = !words;
  }

  function follow(/** @type {{ theme?: string }} */ context) {
    if (context?.theme) document.documentElement.classList.toggle("dark", context.theme === "dark");
  }

  /** Draws the run of a result of the tool, which has its address. */
  async function show(/** @type {{ content: { text: string }[], isError?: boolean }} */ { content, isError }) {
    const text = content[0]?.text ?? "";
    if (isError) return say(text);
    const { replay } = JSON.parse(text);
    if (!replay) return say("This run was not kept.");
    part("#home").hidden = false;
    part("#home a").setAttribute("href", replay);
    // Its name begins as that of the tool that was called, with a prefix where the server has one.
    const prefix = (host.hostContext?.toolInfo?.tool.name ?? "watch").replace(/watch$/, "");
    const answer = await ask("tools/call", { name: `${prefix}watched`, arguments: { replay } });
    if (answer.isError) return say(answer.content[0].text);
    say("");
    part("#stage").replaceChildren(make("div", "stage"));
    const props = { value: /** @type {Packed} */ (JSON.parse(answer.content[0].text)) };
    stage({ element: part("#stage"), props, watch: () => {}, trigger: null });
  }

  part("#home a").addEventListener("click", (event) => {
    event.preventDefault();
    void ask("ui/open-link", { url: /** @type {HTMLAnchorElement} */ (event.currentTarget).href }).catch(say);
  });
  host = await ask("ui/initialize", {
    protocolVersion: "2026-01-26",
    appInfo: { name: document.title, version: "1" },
    appCapabilities: {},
  });
  follow(host.hostContext);
  tell("ui/notifications/initialized");
  new ResizeObserver(() =>
    tell("ui/notifications/size-changed", { height: Math.ceil(part("main").getBoundingClientRect().height) }),
  ).observe(part("main"));
}
