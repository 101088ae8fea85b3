// The page's address for the values of the controls: what differs from the defaults, and always the models. Those values
// and the address of the last run are remembered for the other rooms.

import { hex } from "./owner.js";
import { remember, remembered } from "./rooms.js";

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
  begins();
  const { names, parameters } = parametersOf(values, known);
  const url = new URL(location.href);
  for (const name of [...names, "id", "shared"]) url.searchParams.delete(name); // of a run that was shown before
  for (const [name, value] of parameters) url.searchParams.set(name, value);
  history.replaceState(history.state, "", url);
  document.title = document.querySelector("#rooms h1")?.textContent ?? document.title; // nor is the title that run's
  follow(values, known);
}

/** Notes that a run of this tab begins, so that the tab finds it again after a reload. */
export function begins() {
  before = { ran, address: location.href, title: document.title };
  remember("goes on", true);
}

/** The secret name of this tab, by which it finds its run again after a reload. */
export function nameOfTab() {
  const name = remembered("tab", hex(crypto.getRandomValues(new Uint8Array(16))));
  remember("tab", name);
  return name;
}

/** Looks for the run that went on when the page was loaded anew. */
export function lookForRun() {
  if (remembered("goes on", false)) document.dispatchEvent(new Event("rejoin"));
}

/**
 * The parameters without the drafter where every drafter ran: choosing another one asks for no other run.
 * @param {string} parameters
 */
function asked(parameters) {
  const every = document.getElementById("drafters")?.hidden === false;
  const found = new URLSearchParams(parameters);
  if (every) found.delete("drafter");
  return found.toString();
}

let ran = ""; // the parameters of the run that is shown; "" for the recorded one
let before = { ran, address: "", title: "" }; // those of the one before it
let chosen = ""; // those of the controls

/**
 * Notes that the values are those of the run that is shown.
 * @param {ControlValue[]} values
 * @param {Defaults} known
 */
export function follow(values, known) {
  ran = parametersOf(values, known).parameters.toString();
  changed(values, known);
}

/**
 * Remembers the values for the other rooms, and marks the run as old if it had other values.
 * @param {ControlValue[]} values
 * @param {Defaults} known
 */
export function changed(values, known) {
  const { names, parameters } = parametersOf(values, known);
  remember("settings", { drafter: values[names.indexOf("drafter")], ...Object.fromEntries(parameters) });
  chosen = parameters.toString();
  markOld();
}

const markOld = () =>
  document.getElementById("stage")?.classList.toggle("old", ran !== "" && asked(chosen) !== asked(ran));

/**
 * Puts the id of a run that has ended into the address; "" where the run is not stored. A run without output leaves what
 * was shown before, and its address.
 * @param {string | null} id
 */
export function showRun(id) {
  remember("goes on", false);
  if (document.querySelector(".stage.kept")) {
    history.replaceState(history.state, "", before.address);
    document.title = before.title;
    ran = before.ran;
    return markOld();
  }
  if (!id) return;
  const url = new URL(location.href);
  url.searchParams.set("id", id);
  history.replaceState(history.state, "", url);
  remember("run", url.search);
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
