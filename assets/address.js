// The page's address for the values of the controls: what differs from the defaults, and always the models. And what goes
// along from room to room: those values, and the address of the last run.

import { keep } from "./rooms.js";

/** @import { ControlValue, Defaults } from "./types.d.ts" */

const LONGEST = 6000; // characters; proxies refuse much longer addresses

/**
 * The parameters of an address, and the names of all controls. `short`: the prompts were left out, as too long.
 * @param {ControlValue[]} values in the order of the defaults
 * @param {Defaults} known
 */
export function parametersOf(values, { usual, pairs }) {
  const names = Object.keys(usual);
  const asked = Object.fromEntries(names.map((name, i) => [name, values[i]]));
  const known = { ...usual, ...pairs[String(asked.pair)] };
  if (asked.pair !== "own") asked.target = asked.assistant = "";
  const differs = (/** @type {string} */ name) =>
    asked[name] !== null && String(asked[name]) !== String(known[name] ?? "");
  const wanted = names.filter((name) => name === "pair" || differs(name));
  const whole = new URLSearchParams(wanted.map((name) => [name, String(asked[name])]));
  if (whole.toString().length <= LONGEST) return { names, parameters: whole, short: false };
  whole.delete("prompt");
  whole.delete("system");
  return { names, parameters: whole, short: true };
}

/**
 * Puts the values into the address of the page.
 * @param {ControlValue[]} values
 * @param {Defaults} known
 */
export function showAddress(values, known) {
  const { names, parameters } = parametersOf(values, known);
  const url = new URL(location.href);
  for (const name of [...names, "id", "shared"]) url.searchParams.delete(name); // of a run that was shown before
  for (const [name, value] of parameters) url.searchParams.set(name, value);
  history.replaceState(history.state, "", url);
  follow(values, known);
}

let ran = ""; // the parameters of the run that is shown; "" for the recorded one

let opening = true; // until the page has shown what its address names

/**
 * The values are those of the run that is shown; but for an address with a prompt and no run, where the recorded run is.
 * @param {ControlValue[]} values
 * @param {Defaults} known
 */
export function follow(values, known) {
  const asked = new URLSearchParams(location.search);
  const setup = opening && asked.has("prompt") && !asked.has("id") && !asked.has("shared");
  ran = setup ? "another run" : parametersOf(values, known).parameters.toString();
  opening = false;
  changed(values, known);
}

/**
 * A control has changed: other rooms begin with its value, and a run with other values is marked as old.
 * @param {ControlValue[]} values
 * @param {Defaults} known
 */
export function changed(values, known) {
  const { names, parameters } = parametersOf(values, known);
  keep("settings", { drafter: values[names.indexOf("drafter")], ...Object.fromEntries(parameters) });
  document.getElementById("stage")?.classList.toggle("old", ran !== "" && parameters.toString() !== ran);
}

/**
 * The run that is shown is kept by this id, which the address comes to name.
 * @param {string | null} id
 */
export function showRun(id) {
  if (!id) return;
  const url = new URL(location.href);
  url.searchParams.set("id", id);
  history.replaceState(history.state, "", url);
  keep("run", url.search);
}

/**
 * Answers the Share menu with the address of the run that was kept for it.
 * @param {string} query
 */
export function copyRun(query) {
  const url = `${location.origin}${location.pathname}?${query}`;
  document.dispatchEvent(new CustomEvent("copy-link", { detail: { url, short: false } }));
}

/** The page's address for a picture; "" on one's own machine, where nobody else reaches it. */
export function publicAddress() {
  const own = ["localhost", "127.0.0.1", "[::1]", ""].includes(location.hostname);
  return own ? "" : location.host + location.pathname.replace(/\/$/, "");
}

/**
 * Answers the Share menu (share.js) with the address.
 * @param {ControlValue[]} values
 * @param {Defaults} known
 */
export function copyAddress(values, known) {
  const { parameters, short } = parametersOf(values, known);
  const url = `${location.origin}${location.pathname}?${parameters}`;
  document.dispatchEvent(new CustomEvent("copy-link", { detail: { url, short } }));
}
