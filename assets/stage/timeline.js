// Rounds over true time: the baseline's passes above, the other lanes' rounds below, a block a round. A block is as
// wide as its round took and as high as the tokens it gained. Blocks are drawn once, in seconds and tokens; time that
// grows, zoom and pan change transforms alone. What the pointer is over is found by arithmetic, not by elements.

import { AXIS, Band, BAND, CAPTION, drawTicks, PLAIN, roundTip, showRoundTip, zoomButtons } from "./bands.js";
import { hear, make, put, say, svg, tell } from "./core.js";
import { keysOn, pointerOn } from "./gestures.js";
import { tokensOf } from "./log.js";
import { BREAK, ticksOf } from "./scale.js";
import { View } from "./view.js";
import { count, inMs } from "./words.js";

/** @import { Rounds } from "./log.js" */
/** @import { LaneValue, Span, Which } from "../types.d.ts" */

/** As the figures have it. @param {number} seconds */
const hundredths = (seconds) => Math.round(100 * seconds) / 100;

const NOTHING = { lane: 0, round: 0 };

export class Timeline {
  /** @type {Band[]} */
  #bands = [];
  #view = new View();
  /** @type {string[]} */
  #names = [];
  #height = 0;
  #unit = 1; // pixels a token
  #ticksDrawn = "";
  /** @type {Which} */
  #chosen = NOTHING;
  /** @type {Which} */
  #hovered = NOTHING;
  #time = Infinity;
  #finished = false; // a lane that was stopped wins nothing

  #clip;
  #hatch;
  #ticks;
  #bandsNode;
  #captions;
  #veil;
  #cursor;
  #chosenBox;
  #hoverBox;
  #picture;
  #plot;

  constructor() {
    this.#clip = svg("rect", { y: 0, height: 4000 });
    this.#hatch = svg(
      "pattern",
      { id: "timeline-hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse" },
      svg("rect", { class: "ground", width: 5, height: 5 }),
      svg("rect", { class: "line", width: 2, height: 5 }),
    );
    this.#ticks = svg("g", { class: "ticks" });
    this.#bandsNode = svg("g");
    this.#captions = svg("g");
    this.#veil = svg("rect", { class: "veil", y: 0 });
    this.#cursor = svg("line", { class: "cursor", y1: 0 });
    this.#chosenBox = svg("rect", { class: "chosen", rx: 2 });
    this.#hoverBox = svg("rect", { class: "hover", rx: 2 });
    const defs = svg("defs", {}, svg("clipPath", { id: "timeline-clip" }, this.#clip), this.#hatch);
    const parts = [defs, this.#ticks, this.#bandsNode, this.#veil, this.#captions];
    this.#picture = svg("svg", { "aria-hidden": "true" }, ...parts, this.#hoverBox, this.#chosenBox, this.#cursor);
    this.#plot = make("div", "plot", this.#picture);
    this.#plot.tabIndex = 0;
    this.#plot.setAttribute("role", "application");
    this.#plot.setAttribute("aria-roledescription", "timeline");
    const zoom = zoomButtons([
      ["−", "Zoom out (Ctrl+wheel)", () => this.#zoom(2)],
      ["+", "Zoom in (Ctrl+wheel)", () => this.#zoom(0.5)],
      ["Fit", "Fit the run", () => this.#look(null)],
    ]);
    this.node = make("section", "timeline", this.#plot, zoom);
    this.node.setAttribute("aria-label", "Rounds timeline");
    this.node.hidden = true;
    this.#listen();
  }

  /** @param {LaneValue[]} lanes @param {Rounds[]} rounds */
  show(lanes, rounds) {
    if (lanes.length !== this.#bands.length) {
      this.#bands = this.#view.lanes = lanes.map((_, index) => new Band(index));
      this.#bandsNode.replaceChildren(...this.#bands.map((band) => band.node));
      this.#captions.replaceChildren(...this.#bands.flatMap((band) => [band.caption, band.flag]));
      this.#chosen = this.#start();
    }
    const wasRunning = this.#view.running;
    const running = lanes.some(({ state }) => state === "running" || state === "waiting");
    this.#view.running = running;
    this.#finished = lanes.every(({ state }) => state === "done");
    this.node.hidden = !running && !rounds.some(({ all }) => all.length);
    const another = this.#bands.some((band, index) => band.drawn > 0 && band.all !== rounds[index].all);
    if (another) {
      this.#view.part = null;
      this.#chosen = this.#start();
      this.#hovered = NOTHING;
      roundTip.hidden = true;
    }
    const grown = this.#bands.map((band, index) => band.draw(rounds[index])).some(Boolean);
    this.#names = lanes.map(({ title }) => title);
    if (grown || another || wasRunning !== running) this.#draw();
    if (!running) this.#describe();
  }

  /** Keys begin in the first lane that drafts. */
  #start() {
    return { lane: Math.min(1, this.#bands.length - 1), round: 0 };
  }

  /** How many tokens each lane had at the time that both clocks have reached. */
  race() {
    const reached = Math.min(...this.#bands.map(({ end }) => end));
    return this.#bands.map(({ all, rounds }) => tokensOf(all.slice(0, rounds.until(reached))));
  }

  #describe() {
    const lanes = this.#bands.map(
      ({ all, end }, i) => `${this.#names[i]}: ${count(all.length, "round")} in ${end.toFixed(2)} s.`,
    );
    const how = "Arrow keys go from round to round, plus and minus zoom.";
    this.#plot.setAttribute("aria-label", `Rounds over time. ${lanes.join(" ")} ${how}`);
  }

  // --- drawing ---

  #draw() {
    if (!this.#bands.length || !this.#view.width) return;
    this.#layOut();
    const { cut, scale, left, span, whole, width } = this.#view;
    tell("view", { ...span, left });
    put(this.#clip, { x: left, width: Math.max(0, width - left) });
    this.#hatch.setAttribute("patternTransform", `scale(${1 / scale} ${1 / this.#unit}) rotate(45)`);
    const total = this.#bands.reduce((sum, { all }) => Math.max(sum, all.length), 0);
    const dense = (total * (span.to - span.from)) / (whole.to - whole.from) > width / 5;
    this.#picture.classList.toggle("dense", dense);
    this.#bands.forEach((band, index) => {
      const from = left - span.from * scale;
      band.blocks.setAttribute("transform", `matrix(${scale} 0 0 ${-this.#unit} ${from} ${band.bottom})`);
      put(band.caption, { y: band.top - 5 });
      this.#tellCaption(band, index);
      band.drawBreak(left > 0 && span.from <= cut && band.all.length > 0, this.#unit);
    });
    this.#drawTicks();
    this.#drawBoxes();
    this.#drawCursor();
  }

  #layOut() {
    let y = 0;
    this.#bands.forEach((band, index) => {
      band.top = y + CAPTION;
      band.bottom = band.top + (index === 0 && band.most === 1 ? PLAIN : BAND);
      y = band.bottom + 2;
    });
    this.#unit = BAND / Math.max(4, ...this.#bands.map(({ most }) => most));
    if (this.#height !== y + AXIS) {
      this.#height = y + AXIS;
      put(this.#picture, { height: this.#height });
    }
  }

  /** @param {Band} band @param {number} index */
  #tellCaption(band, index) {
    const name = this.#names[index];
    const text = this.#captionOf(band, band === this.#last());
    if (band.caption.textContent === name + text) return;
    band.caption.replaceChildren(svg("tspan", {}, name), text);
  }

  /** The lane that ends last: no flag stands in its line. */
  #last() {
    const [base, ...others] = this.#bands;
    return this.#view.running ? base : others.reduce((last, band) => (band.end > last.end ? band : last), base);
  }

  /** @param {Band} band @param {boolean} explains whether its line says what a block is */
  #captionOf({ all, rounds }, explains) {
    if (!all.length) return "";
    const { cut, width } = this.#view;
    const done = rounds.all.slice(0, this.#time === Infinity ? all.length : rounds.until(this.#time));
    const tokens = tokensOf(done);
    const facts = [this.#view.running ? count(tokens, "token") : `${tokens} of ${tokensOf(all)}`];
    if (cut && width > 520) facts.push(`prefill ${inMs(all[0].times.end)}, cut short`);
    if (explains) facts.push("width: time, height: tokens");
    return `  ${facts.join(" · ")}`;
  }

  /** The lane that ends first gets a flag, and the time by which it is ahead then, as far as the clock has come. */
  #drawFlags() {
    const ends = this.#bands.map(({ end }) => end);
    const [first, last] = [Math.min(...ends), Math.max(...ends)];
    this.#bands.forEach(({ flag, end, top, bottom }) => {
      const ahead = hundredths(Math.min(this.#time, last)) - hundredths(end);
      const won = this.#finished && end === first && first < last && ahead >= 0;
      flag.style.display = won && this.#view.x(end) <= this.#view.width ? "" : "none";
      if (!won) return;
      const x = this.#view.x(end);
      const fits = x + 116 < this.#view.width;
      put(flag, { x: fits ? x + 6 : this.#view.width - 2, y: fits ? (top + bottom) / 2 + 6 : top - 4 });
      flag.setAttribute("text-anchor", fits ? "start" : "end");
      say(flag, ahead >= 0.005 ? `⚑ ${ahead.toFixed(2)} s ahead` : "⚑");
    });
  }

  #drawTicks() {
    const { span, left, scale, width } = this.#view;
    const began = this.#bands.some(({ all }) => all.length);
    const marks = began ? ticksOf(span, left, scale, width) : [];
    const text = JSON.stringify([marks, this.#height]);
    if (text !== this.#ticksDrawn) this.#ticks.replaceChildren(...drawTicks(marks, this.#height));
    this.#ticksDrawn = text;
  }

  #drawBoxes() {
    for (const [box, which] of /** @type {const} */ ([
      [this.#chosenBox, this.#chosen],
      [this.#hoverBox, this.#hovered],
    ])) {
      const at = this.#view.boxOf(which);
      box.style.display = at?.visible ? "" : "none";
      if (at) put(box, { x: at.x, width: at.width, y: at.y - 2, height: at.height + 4 });
    }
  }

  #drawCursor() {
    const { cut, width } = this.#view;
    this.#bands.forEach((band, index) => this.#tellCaption(band, index));
    this.#drawFlags();
    this.#cursor.style.display = this.#veil.style.display = this.#time === Infinity ? "none" : "";
    if (this.#time === Infinity) return;
    const x = Math.min(this.#time < cut ? (BREAK * this.#time) / cut : Math.max(0, this.#view.x(this.#time)), width);
    const height = Math.max(0, this.#height - AXIS); // a replay that begins by itself seeks before the lanes are laid out
    put(this.#cursor, { transform: `translate(${x})`, y2: height + 4 });
    put(this.#veil, { x, width: Math.max(0, width - x), height });
  }

  // --- zoom, pan and choice ---

  /** @param {Span | null} next null for the whole */
  #look(next) {
    this.#view.look(next);
    this.#redraw();
  }

  /** @param {number} factor @param {number} [about] the second that keeps its place */
  #zoom(factor, about) {
    const { from, to } = this.#view.span;
    const times = this.#bands[this.#chosen.lane]?.all[this.#chosen.round - 1]?.times;
    const visible = times && times.start < to && times.end > from;
    this.#view.zoom(factor, about ?? (visible ? times.start : (from + to) / 2));
    this.#redraw();
  }

  /** @param {number} seconds */
  #pan(seconds) {
    this.#view.pan(seconds);
    this.#redraw();
  }

  #redraw() {
    this.#draw();
    if (this.#hovered.round) this.#tellRound();
  }

  /** @param {Which} which */
  #hover(which) {
    if (which.lane === this.#hovered.lane && which.round === this.#hovered.round) return;
    this.#hovered = which;
    if (which.round) this.#tellRound();
    else roundTip.hidden = true;
    this.#drawBoxes();
  }

  #tellRound() {
    const { lane, round } = this.#hovered;
    const at = this.#view.boxOf(this.#hovered);
    if (at) showRoundTip(this.#bands[lane].all[round - 1], round, at, this.#picture.getBoundingClientRect());
  }

  /** @param {number} lane @param {number} round */
  #choose(lane, round) {
    tell("select", { lane, round });
    if (!round) return this.#hover(NOTHING);
    this.#hovered = NOTHING;
    this.#hover({ lane, round });
  }

  #listen() {
    const moves = {
      choose: (/** @type {number} */ lane, /** @type {number} */ round) => this.#choose(lane, round),
      pan: (/** @type {number} */ seconds) => this.#pan(seconds),
      zoom: (/** @type {number} */ factor, /** @type {number | undefined} */ about) => this.#zoom(factor, about),
      look: (/** @type {Span | null} */ span) => this.#look(span),
    };
    const view = this.#view;
    pointerOn(this.#picture, {
      ...moves,
      roundAt: ({ clientX, clientY }) => {
        const box = this.#picture.getBoundingClientRect();
        return view.roundAt(clientX - box.left, clientY - box.top);
      },
      timeAt: (x) => view.timeAt(x),
      hover: (which) => this.#hover(which),
      pixels: (by) => by / view.scale,
      zoomed: () => view.part !== null,
    });
    const span = () => view.span.to - view.span.from;
    keysOn(this.#plot, { ...moves, bands: () => this.#bands, chosen: () => this.#chosen, span });
    this.#plot.addEventListener("focusout", () => this.#hover(NOTHING));
    const follow = (/** @type {Event} */ { target }) => {
      if (this.#hovered.round && /** @type {Node} */ (target).contains(this.#plot)) this.#tellRound();
    };
    addEventListener("scroll", follow, { passive: true, capture: true });
    new ResizeObserver(([{ contentRect }]) => {
      view.width = contentRect.width;
      this.#draw();
    }).observe(this.#plot);
    hear("select", ({ lane, round }) => {
      this.#chosen = { lane, round };
      const times = this.#bands[lane]?.all[round - 1]?.times;
      if (times && view.reveal(times.start, times.end)) this.#redraw();
      this.#drawBoxes();
    });
    hear("seek", ({ time }) => {
      this.#time = time;
      if (Number.isFinite(time) && view.reveal(time, time)) this.#redraw();
      this.#drawCursor();
    });
  }
}
