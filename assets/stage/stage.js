// The stage, drawn from one value (see ui/compare/screen.py): status, headline, lanes, timeline and replay.

import { savesPicture } from "./card.js";
import { make } from "./core.js";
import { draftersPart } from "./drafters.js";
import { gapsPart } from "./gaps.js";
import { lanesPart } from "./lanes.js";
import { legendPart } from "./legend.js";
import { unpacked } from "./log.js";
import { plainPass } from "./popover.js";
import { replayPart } from "./replay.js";
import { timelinePart } from "./timeline.js";
import { deployPart, verdictPart } from "./verdict.js";

/** @import { Component, Packed, Press } from "../types.d.ts" */

/**
 * Draws it in an element of Gradio's or of the saved HTML file, whose `trigger` is null: nobody hears an event there.
 * @param {Omit<Component<Packed>, "trigger"> & { trigger: Press | null }} component
 */
export function stage({ element, props, watch, trigger: press }) {
  const sentence = make("span");
  const progress = make("progress");
  const offer = make("button", "offer");
  const status = make("div", "status", sentence, progress, offer);
  const banner = make("p", "banner");
  const verdict = verdictPart(press);
  const drafters = draftersPart(press);
  const lanes = lanesPart();
  const timeline = timelinePart();
  const replay = replayPart();
  const legend = legendPart();
  const deploy = deployPart();
  const gaps = gapsPart();
  status.id = "status";
  offer.type = "button";
  offer.addEventListener("click", () => press?.("download"));
  banner.id = "banner";
  const parts = [status, banner, drafters.node, verdict.node, timeline.node, replay.node, legend, lanes.node, replay.said, deploy.node, gaps.node];
  element.querySelector(".stage")?.append(...parts);
  savesPicture(() => unpacked(props.value));

  function show() {
    const value = unpacked(props.value);
    const { text, kind, fraction } = value.status;
    status.className = `status ${kind}`;
    status.setAttribute("role", kind === "error" ? "alert" : "status");
    if (sentence.textContent !== text) sentence.textContent = text;
    status.hidden = !text;
    offer.textContent = value.offer;
    offer.hidden = !value.offer || !press;
    progress.hidden = kind !== "busy";
    if (fraction === null) progress.removeAttribute("value");
    else progress.value = fraction;
    if (banner.textContent !== value.banner) banner.textContent = value.banner;
    banner.hidden = !value.banner;
    plainPass.seconds = value.lanes[0].timing?.pass_s ?? null;
    drafters.show(value.drafters);
    verdict.show(value.verdict);
    deploy.show(value.deploy);
    const rounds = lanes.show(value.lanes, value.difference);
    timeline.show(value.lanes, rounds);
    replay.show(value, rounds);
    legend.hidden = !rounds.some(({ all }) => all.length);
    gaps.show(value.lanes, rounds);
  }

  watch("value", show);
  show();
}
