// The lanes side by side; on a phone one at a time, in tabs. A lane is its head (name, state and speed), a token panel
// (tokens.js) and its figures. What ran before stays, dimmed, until a lane has its first round.

import { hear, make, say } from "./core.js";
import { figuresPart } from "./figures.js";
import { Rounds, tokensOf } from "./log.js";
import { TokenPanel } from "./tokens.js";

/** @import { Difference, LaneValue } from "../types.d.ts" */

export function lanesPart() {
  const tabs = make("div", "tabs");
  tabs.setAttribute("role", "tablist");
  tabs.setAttribute("aria-label", "Lanes");
  const row = make("div", "lanes");
  const node = make("div", "lanes-part", tabs, row);
  /** @type {ReturnType<typeof lane>[]} */
  let views = [];
  let chosen = 1; // on a phone the lane that drafts is seen first

  /** @param {number} index */
  function choose(index) {
    chosen = index;
    views.forEach(({ tab, section }, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
      section.classList.toggle("chosen", i === index);
    });
  }

  tabs.addEventListener("click", (event) => {
    const index = views.findIndex(({ tab }) => tab === event.target);
    if (index >= 0) choose(index);
  });
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    choose((chosen + step + views.length) % views.length);
    views[chosen].tab.focus();
  });

  hear("select", ({ lane, round }) => {
    if (round) choose(lane);
    views.forEach((view, index) => view.tokens.select(index === lane ? round : 0));
  });
  hear("seek", ({ time, share }) => views.forEach((view, index) => view.seek(time, index ? share : 0)));

  /**
   * Draws the lanes and returns each one's rounds.
   * @param {LaneValue[]} values
   * @param {Difference | null} difference
   */
  function show(values, difference) {
    if (values.length !== views.length) {
      views = values.map((_, index) => lane(index));
      tabs.replaceChildren(...views.map(({ tab }) => tab));
      row.replaceChildren(...views.map(({ section }) => section));
      row.style.setProperty("--lanes", String(values.length));
      choose(Math.min(chosen, views.length - 1));
    }
    return values.map((value, index) => views[index].show(value, difference));
  }
  return { node, show };
}

/** @param {number} index */
function lane(index) {
  const title = make("h2");
  const how = make("span", "how");
  const chip = make("span", "chip");
  const figures = figuresPart();
  const panel = make("div", "tokens");
  panel.setAttribute("role", "log");
  panel.setAttribute("aria-live", "off");
  const tab = make("button", "tab");
  tab.type = "button";
  tab.setAttribute("role", "tab");
  const speed = make("span", "speed");
  const head = make("div", "lane-head", title, how, chip, speed);
  const section = make("section", "lane", head, panel, figures.node);
  panel.addEventListener("click", () => section.classList.add("whole")); // on a phone, beside a table of drafters
  const rounds = new Rounds();
  const none = new Rounds(); // of a lane that still shows what ran before
  const tokens = new TokenPanel(panel, index);
  let state = "";
  let ended = ""; // what the chip says of that state

  /** @param {LaneValue} value @param {Difference | null} difference */
  function show(value, difference) {
    const waits = value.state === "waiting" || value.state === "running";
    section.classList.toggle("before", waits && !value.log && rounds.all.length > 0);
    state = value.state;
    ended = value.cut && state === "done" ? "done: token limit" : state;
    say(title, value.title);
    say(tab, value.title);
    say(how, value.how);
    how.title = value.how;
    say(chip, ended);
    chip.className = "chip " + state;
    panel.setAttribute("aria-label", value.label);
    if (waits && !value.log) return none;
    figures.show(value.figures);
    const fresh = rounds.update(value.log);
    tokens.draw(fresh, rounds.restarted);
    tokens.mark(difference);
    tokens.part(value.segments);
    if (waits) tellSpeed(rounds.all.length);
    return rounds;
  }

  /**
   * The speed, once all rounds show: that of a part would seem to contradict the verdict.
   * @param {number} n rounds
   */
  function tellSpeed(n) {
    const took = rounds.all.at(-1)?.times.end ?? 0;
    say(speed, took && n === rounds.all.length ? `${(tokensOf(rounds.all) / took).toFixed(1)} tok/s` : "");
  }

  /** @param {number} time @param {number} share of the round that plays slowly */
  function seek(time, share) {
    const n = time === Infinity ? rounds.all.length : rounds.until(time);
    tokens.show(time === Infinity ? Infinity : n);
    tokens.guess(share);
    tellSpeed(n);
    const plays = state === "done" && n < rounds.all.length;
    say(chip, plays ? "" : ended);
    chip.classList.toggle("done", state === "done" && !plays);
  }
  return { section, tab, rounds, tokens, show, seek };
}
