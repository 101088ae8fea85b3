// The stage, drawn from the value that views/stage.py makes: status, headline, lanes, timeline and replay.

import { savesPicture } from "./card.js";
import { conversationPart, nextPart } from "./conversation.js";
import { button, make, say, within } from "./core.js";
import { draftersPart } from "./drafters.js";
import { gapsPart } from "./gaps.js";
import { lanesPart } from "./lanes.js";
import { legendPart } from "./legend.js";
import { lightPressed } from "./lit.js";
import { unpacked } from "./log.js";
import { replayPart } from "./replay.js";
import { roundPart } from "./round.js";
import { Timeline } from "./timeline.js";
import { deployPart, verdictPart } from "./verdict.js";

/** @import { Component, Packed, Press, StageValue } from "../types.d.ts" */

const ASKING = ["id", "shared", "pair", "prompt"]; // parameters of an address that asks for another run than the recorded one

/**
 * The status line: a sentence, the seconds since it began, a progress bar, and the offer of a large download.
 * @param {Press | null} press
 */
function statusPart(press) {
  const sentence = make("span");
  const elapsed = make("span", "elapsed");
  const progress = make("progress");
  const offer = button("offer", "", () => press?.("download"));
  const node = make("div", "status", sentence, offer, elapsed, progress);
  elapsed.ariaHidden = "true"; // else a screen reader would count along
  node.id = "status";
  let since = 0;
  let busy = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  function count() {
    const seconds = Math.floor((performance.now() - since) / 1000);
    say(elapsed, seconds ? `${seconds} s` : "");
    timer = setTimeout(count, 1000);
  }

  /** @param {StageValue["status"]} value @param {string} offered */
  function show({ text, kind, fraction }, offered) {
    node.className = `status ${kind}`;
    node.setAttribute("role", kind === "error" ? "alert" : "status");
    clearTimeout(timer); // a run that goes on counts with what it draws
    if (sentence.textContent !== text || !busy) since = performance.now();
    busy = kind === "busy";
    if (busy) count();
    say(sentence, text);
    node.hidden = !text;
    say(offer, offered);
    offer.hidden = !offered || !press;
    progress.hidden = elapsed.hidden = kind !== "busy";
    if (fraction === null) progress.removeAttribute("value");
    else progress.value = fraction;
  }
  return { node, show };
}

/**
 * Draws the stage in an element of Gradio's, or of the saved HTML file, whose `trigger` is null: nobody listens there.
 * @param {Omit<Component<Packed>, "trigger"> & { trigger: Press | null }} component
 */
export function stage({ element, props, watch, trigger: press }) {
  const status = statusPart(press);
  const banner = make("p", "banner");
  const verdict = verdictPart(press);
  const drafters = draftersPart(press);
  const conversation = conversationPart();
  const lanes = lanesPart();
  const next = nextPart(press);
  const timeline = new Timeline();
  const replay = replayPart();
  const round = roundPart();
  const legend = legendPart();
  const deploy = deployPart(press);
  const gaps = gapsPart();
  banner.id = "banner";
  replay.node.append(legend.node);
  const notes = make("ul", "notes");
  const head = make("div", "head", verdict.node, make("div", "says", status.node, banner));
  const parts = [
    head,
    timeline.node,
    replay.node,
    conversation.node,
    lanes.node,
    drafters.node,
    verdict.explained,
    next.node,
    notes,
    deploy.node,
    gaps.node,
    round.node,
  ];
  const root = element.querySelector(".stage");
  root?.append(...parts);
  element.addEventListener("click", lightPressed);
  document.addEventListener("click", (event) => {
    const { measure: drafter, lookahead } = within(event, "[data-measure]")?.dataset ?? {}; // of a command not measured
    if (!drafter || !press) return;
    event.preventDefault();
    press("option_select", { drafter, lookahead: Number(lookahead) });
  });
  let drawn = unpacked(props.value); // the last value with a round
  savesPicture(() => drawn);
  document.addEventListener("rejoin", () => press?.("rejoin"));

  function show() {
    const value = unpacked(props.value);
    const instead = value.kind === "recorded" && ASKING.some((name) => new URLSearchParams(location.search).has(name));
    root?.classList.toggle("awaited", instead);
    if (instead) {
      drawn.lanes = [];
      return; // what the address asks for comes
    }
    const empty = value.lanes.every(({ log }) => !log);
    const keeps = empty && value.kind !== "alone" && drawn.lanes.some(({ log }) => log);
    status.show(value.status, value.offer);
    const ahead = keeps && value.status.kind !== "busy" ? drawn : value; // what is shown from now on
    root?.classList.toggle("many", ahead.drafters !== null);
    root?.classList.toggle("kept", keeps);
    root?.classList.toggle("before", keeps && value.status.kind === "busy");
    root?.classList.toggle("nothing", empty && !keeps && value.status.kind !== "busy");
    if (keeps) return; // what was shown stays until there is a round
    drawn = value;
    say(banner, value.banner);
    banner.hidden = !value.banner;
    drafters.show(value.drafters, value.deploy);
    root?.classList.toggle("running", value.status.kind === "busy");
    if (value.verdict.terms || value.status.kind !== "busy") verdict.show(value.verdict);
    deploy.show(value.deploy);
    conversation.show(value.conversation);
    next.show(value);
    notes.replaceChildren(...value.verdict.notes.map((note) => make("li", "", note)));
    const rounds = lanes.show(value.lanes, value.difference);
    legend.show(value.lanes, rounds);
    timeline.show(value.lanes, rounds);
    replay.show(value, rounds);
    round.show(value, rounds);
    gaps.show(value.lanes, rounds);
    const names = value.lanes.map(({ title }) => title);
    if (value.status.kind === "busy" && !value.verdict.terms) verdict.race(names, timeline.race());
  }

  watch("value", show);
  show();
}
