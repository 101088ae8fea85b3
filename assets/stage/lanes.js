// The lanes side by side; on a phone one at a time, in tabs. A lane is its head (name, state, figures) and a token
// panel (tokens.js).

import { hear, make, say } from "./core.js";
import { figuresPart } from "./figures.js";
import { Rounds } from "./log.js";
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
    views[index]?.tokens.align();
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
  hear("seek", ({ time }) => views.forEach((view) => view.seek(time)));

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
    const running = values.findIndex(({ state }) => state === "running");
    if (running >= 0 && !views[running].ran) choose(running); // the phone follows the lane that runs
    values.forEach((value, index) => {
      views[index].ran = value.state === "running";
      views[index].show(value, difference);
    });
    // Of several passes another one may be shown at the end of a run, in either lane.
    if (running < 0 && views.some(({ rounds }) => rounds.restarted)) views.forEach((view) => view.tokens.begin());
    return views.map(({ rounds }) => rounds);
  }
  return { node, show };
}

/** @param {number} index */
function lane(index) {
  const title = make("h2");
  const chip = make("span", "chip");
  const figures = figuresPart();
  const panel = make("div", "tokens");
  panel.setAttribute("role", "log");
  panel.setAttribute("aria-live", "off");
  const tab = make("button", "tab");
  tab.type = "button";
  tab.setAttribute("role", "tab");
  const section = make(
    "section",
    "lane",
    make("div", "lane-head", make("div", "title", title, chip), figures.node),
    panel,
  );
  const rounds = new Rounds();
  const tokens = new TokenPanel(panel, index);

  /** @param {LaneValue} value @param {Difference | null} difference */
  function show({ name, label, state, figures: values, log, segments }, difference) {
    say(title, name);
    say(tab, name);
    panel.setAttribute("aria-label", label);
    say(chip, state);
    chip.className = "chip " + state;
    panel.classList.toggle("begun", state === "waiting" || state === "running");
    figures.show(values);
    const fresh = rounds.update(log);
    tokens.draw(fresh, rounds.restarted, state === "running");
    tokens.mark(difference);
    tokens.part(segments);
  }
  /** @param {number} time */
  const seek = (time) => tokens.show(time === Infinity ? Infinity : rounds.until(time));
  return { section, tab, rounds, tokens, show, seek, ran: false };
}
