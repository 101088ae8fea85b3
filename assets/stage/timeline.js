// Rounds over true time: the baseline's passes above, the other lanes' rounds below, a block a round. A block is as
// wide as its round took and as high as the tokens it gained. Blocks are drawn once, in seconds and tokens; time that
// grows, zoom and pan change transforms alone. What the pointer is over is found by arithmetic, not by elements.

import { AXIS, Band, BAND, CAPTION, drawTicks, PLAIN, roundTip, RULER, showRoundTip, timelineHead } from "./bands.js";
import { hear, make, put, svg, tell } from "./core.js";
import { keysOn, pointerOn } from "./gestures.js";
import { BREAK, cutOf, EDGE, partOf, ticksOf, wholeOf } from "./scale.js";
import { count, inMs } from "./words.js";

/** @import { Rounds } from "./log.js" */
/** @import { LaneValue, Span, Which } from "../types.d.ts" */

export function timelinePart() {
  const clip = svg("rect", { y: 0, height: 4000 });
  const hatch = svg(
    "pattern",
    { id: "timeline-hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse" },
    svg("rect", { class: "ground", width: 5, height: 5 }),
    svg("rect", { class: "line", width: 2, height: 5 }),
  );
  const ticks = svg("g", { class: "ticks" });
  const bandsNode = svg("g");
  const captions = svg("g");
  const measure = svg("path");
  const words = svg("text");
  const ruler = svg("g", { class: "ruler" }, measure, words);
  const veil = svg("rect", { class: "veil", y: 0 });
  const cursor = svg("line", { class: "cursor", y1: 0 });
  const chosenBox = svg("rect", { class: "chosen", rx: 2 });
  const hoverBox = svg("rect", { class: "hover", rx: 2 });
  const picture = svg(
    "svg",
    { "aria-hidden": "true" },
    svg("defs", {}, svg("clipPath", { id: "timeline-clip" }, clip), hatch),
    ticks,
    bandsNode,
    veil,
    captions,
    ruler,
    hoverBox,
    chosenBox,
    cursor,
  );
  const plot = make("div", "plot", picture);
  plot.tabIndex = 0;
  plot.setAttribute("role", "application");
  plot.setAttribute("aria-roledescription", "timeline");
  const head = timelineHead(
    "Rounds timeline",
    [["verify", "a pass, as long as it took"], ["draft", "drafting"], ["gain", "guessed right, a step a token"], ["height", "press a block for its round"]],
    [["−", "Zoom out (Ctrl+wheel)", () => zoom(2)], ["+", "Zoom in (Ctrl+wheel)", () => zoom(0.5)], ["Fit", "Fit the run", () => look(null)]],
  );
  const node = make(
    "section",
    "timeline",
    make("div", "rounds", head, plot),
  );
  node.setAttribute("aria-label", "Rounds timeline");
  node.hidden = true;

  /** @type {Band[]} */
  let bands = [];
  /** @type {string[]} */
  let names = [];
  let running = false;
  /** @type {number | null} */
  let plainPass = null; // the median plain pass in seconds, once the baseline has ended
  let width = 0;
  let height = 0;
  let unit = 1; // pixels a token
  let marked = ""; // the ticks that are drawn
  /** @type {Span | null} */
  let view = null; // where the user chose it; else the whole run
  /** @returns {Which} */
  const none = () => ({ lane: Math.min(1, bands.length - 1), round: 0 }); // keys begin in the first lane that drafts
  const nothing = { lane: 0, round: 0 };
  let chosen = none();
  let hovered = nothing;
  let time = Infinity;

  // --- geometry ---

  const cut = () => cutOf(bands);
  const whole = () => wholeOf(bands, running);
  const seen = () => view ?? whole();
  const left = () => (cut() ? BREAK : 0);
  /** @param {Span} span */
  const scale = ({ from, to }) => Math.max(1, width - left() - EDGE) / (to - from);
  /** @param {Band} band @param {number} index */
  const bandHeight = ({ most }, index) => (index === 0 && most === 1 ? PLAIN : BAND);

  function layOut() {
    let y = 0;
    bands.forEach((band, index) => {
      band.top = y + CAPTION;
      band.bottom = band.top + bandHeight(band, index);
      y = band.bottom + (index === 0 ? RULER : 4);
    });
    unit = BAND / Math.max(4, ...bands.map(({ most }) => most));
    if (height !== y + AXIS) {
      height = y + AXIS;
      put(picture, { height });
    }
  }

  function draw() {
    if (!bands.length || !width) return;
    layOut();
    const { from, to } = seen();
    const k = scale({ from, to });
    const start = left();
    put(clip, { x: start, width: Math.max(0, width - start) });
    hatch.setAttribute("patternTransform", `scale(${1 / k} ${1 / unit}) rotate(45)`);
    const total = bands.reduce((sum, { all }) => Math.max(sum, all.length), 0);
    picture.classList.toggle("dense", (total * (to - from)) / (whole().to - whole().from) > width / 5);
    bands.forEach((band, index) => {
      band.blocks.setAttribute("transform", `matrix(${k} 0 0 ${-unit} ${start - from * k} ${band.bottom})`);
      put(band.caption, { y: band.top - 6 });
      const text = captionOf(band, names[index]);
      if (band.caption.textContent !== text)
        band.caption.replaceChildren(svg("tspan", {}, names[index]), text.slice(names[index].length));
      band.drawBreak(start > 0 && from <= cut() && band.all.length > 0, unit);
    });
    const began = bands.some(({ all }) => all.length);
    const marks = began ? ticksOf({ from, to }, start, k, width) : [];
    const text = JSON.stringify([marks, height]);
    if (text !== marked) ticks.replaceChildren(...drawTicks(marks, height));
    marked = text;
    drawRuler(k);
    drawBoxes();
    drawCursor();
  }

  /** @param {Band} band @param {string} name */
  function captionOf({ all, drafts, most }, name) {
    if (!all.length) return name;
    const facts =
      cut() && width < 420 ? [] : [drafts ? count(all.length, "round") : count(all.length, "pass", "passes")];
    if (drafts && width > 600) facts.push(`at most ${count(most, "token")} a round`);
    if (cut()) facts.push(`prefill ${inMs(all[0].times.end)}, cut short`);
    return `${name}  ${facts.join(" · ")}`;
  }

  /**
   * The median plain pass, to scale; it stands at the round that is pointed at or chosen.
   * @param {number} k pixels a second
   */
  function drawRuler(k) {
    ruler.style.display = plainPass === null ? "none" : "";
    if (plainPass === null) return;
    const at = boxOf(hovered.round ? hovered : chosen);
    const x = Math.min(Math.max(at ? at.x : left(), left()), width - 60);
    const y = bands[0].bottom + 9;
    const long = plainPass * k;
    put(measure, { d: `M${x} ${y - 4}v8m0 -4h${long}m0 -4v8` });
    words.textContent = `${inMs(plainPass)}: median plain pass`;
    const fits = x + long + 170 < width;
    put(words, { x: fits ? x + long + 6 : x - 6, y: y + 4, "text-anchor": fits ? "start" : "end" });
  }

  /** @param {Which} which */
  function boxOf({ lane, round }) {
    const found = bands[lane]?.all[round - 1];
    if (!found) return null;
    const { from, to } = seen();
    const k = scale({ from, to });
    const { start, end } = found.times;
    const x = Math.max(left() + (start - from) * k, from <= cut() ? 0 : left());
    return {
      x,
      width: Math.max(2, left() + (end - from) * k - x),
      y: bands[lane].top,
      height: bands[lane].bottom - bands[lane].top,
      visible: end > from && start < to,
    };
  }

  function drawBoxes() {
    drawBox(chosenBox, boxOf(chosen));
    drawBox(hoverBox, boxOf(hovered));
  }

  /** @param {SVGRectElement} box @param {ReturnType<typeof boxOf>} at */
  function drawBox(box, at) {
    box.style.display = at?.visible ? "" : "none";
    if (at) put(box, { x: at.x, width: at.width, y: at.y - 2, height: at.height + 4 });
  }

  function drawCursor() {
    const { from, to } = seen();
    const x = time < cut() ? (BREAK * time) / cut() : Math.max(0, left() + (time - from) * scale({ from, to }));
    cursor.style.display = veil.style.display = time === Infinity ? "none" : "";
    if (time === Infinity) return;
    put(cursor, { transform: `translate(${Math.min(x, width)})`, y2: height - AXIS + 4 });
    const high = Math.max(0, height - AXIS); // a replay that begins by itself seeks before the lanes are laid out
    put(veil, { x: Math.min(x, width), width: Math.max(0, width - x), height: high });
  }

  // --- zoom and pan ---

  /** @param {Span | null} next null for the whole */
  function look(next) {
    view = next && partOf(next, whole());
    draw();
    if (hovered.round) tellRound();
  }

  /**
   * @param {number} factor of the seconds in view
   * @param {number} [about] the second that stays where it is
   */
  function zoom(factor, about) {
    const { from, to } = seen();
    const round = bands[chosen.lane]?.all[chosen.round - 1];
    const fixed =
      about ?? (round && round.times.start < to && round.times.end > from ? round.times.start : (from + to) / 2);
    look({ from: fixed - (fixed - from) * factor, to: fixed + (to - fixed) * factor });
  }

  /** @param {number} seconds */
  function pan(seconds) {
    const { from, to } = seen();
    if (view) look({ from: from + seconds, to: to + seconds });
  }

  /** @param {number} from @param {number} to */
  function bringIntoView(from, to) {
    const now = seen();
    if (!view || (from >= now.from && to <= now.to)) return;
    const middle = (from + to) / 2;
    const half = (now.to - now.from) / 2;
    look({ from: middle - half, to: middle + half });
  }

  // --- choosing a round ---

  /** @param {number} x */
  const timeAt = (x) => seen().from + (x - left()) / scale(seen());

  /** @param {MouseEvent} event */
  function roundAt(event) {
    const box = picture.getBoundingClientRect();
    const y = event.clientY - box.top;
    const x = event.clientX - box.left;
    const lane = bands.findIndex(({ top, bottom }) => y >= top - 4 && y <= bottom + 4);
    const band = bands[lane];
    if (!band?.all.length || timeAt(x) > band.end + 6 / scale(seen())) return nothing;
    return { lane, round: Math.min(band.until(timeAt(x)) + 1, band.all.length) };
  }

  /** @param {Which} which */
  function hover(which) {
    if (which.lane === hovered.lane && which.round === hovered.round) return;
    hovered = which;
    if (which.round) tellRound();
    else roundTip.hidden = true;
    drawBoxes();
    drawRuler(scale(seen()));
  }

  function tellRound() {
    const { lane, round } = hovered;
    const at = boxOf(hovered);
    if (at) showRoundTip(bands[lane].all[round - 1], round, at, picture.getBoundingClientRect());
  }

  /** @param {number} lane @param {number} round */
  function choose(lane, round) {
    tell("select", { lane, round });
    if (!round) return hover(nothing);
    hovered = nothing;
    hover({ lane, round });
  }

  hear("select", ({ lane, round }) => {
    chosen = { lane, round };
    const found = bands[lane]?.all[round - 1];
    if (found) bringIntoView(found.times.start, found.times.end);
    drawBoxes();
    if (plainPass !== null) drawRuler(scale(seen()));
  });
  hear("seek", ({ time: now }) => {
    time = now;
    if (Number.isFinite(now)) bringIntoView(now, now);
    drawCursor();
  });

  // --- pointer and keys ---

  const pixels = (/** @type {number} */ by) => by / scale(seen()); // in seconds
  pointerOn(picture, { roundAt, timeAt, hover, choose, pixels, pan, zoom, look, zoomed: () => view !== null });
  const span = () => seen().to - seen().from;
  keysOn(plot, { bands: () => bands, chosen: () => chosen, span, choose, pan, zoom, look });
  plot.addEventListener("focusout", () => hover(nothing));
  const follow = (/** @type {Event} */ { target }) => {
    if (hovered.round && /** @type {Node} */ (target).contains(plot)) tellRound();
  };
  addEventListener("scroll", follow, { passive: true, capture: true });

  new ResizeObserver(([{ contentRect }]) => {
    width = contentRect.width;
    draw();
  }).observe(plot);

  // --- the value ---

  /** @param {LaneValue[]} lanes @param {Rounds[]} rounds */
  function show(lanes, rounds) {
    if (lanes.length !== bands.length) {
      bands = lanes.map((_, index) => new Band(index));
      bandsNode.replaceChildren(...bands.map((band) => band.node));
      captions.replaceChildren(...bands.map((band) => band.caption));
      chosen = none();
    }
    const wasRunning = running;
    running = lanes.some(({ state }) => state === "running" || state === "waiting");
    node.hidden = !running && !rounds.some(({ all }) => all.length);
    const another = bands.some((band, index) => band.drawn > 0 && band.all !== rounds[index].all);
    if (another) {
      view = null;
      chosen = none();
      hovered = nothing;
      roundTip.hidden = true;
    }
    const grown = bands.map((band, index) => band.draw(rounds[index])).some(Boolean);
    names = lanes.map(({ name }) => name);
    plainPass = lanes[0].timing?.pass_s ?? null;
    if (grown || another || wasRunning !== running) draw();
    if (running) return;
    const said = bands.map(({ all, end }, i) => `${names[i]}: ${count(all.length, "round")} in ${end.toFixed(2)} s.`);
    const how = "Arrow keys go from round to round, plus and minus zoom.";
    plot.setAttribute("aria-label", `Rounds over time. ${said.join(" ")} ${how}`);
  }
  return { node, show };
}
