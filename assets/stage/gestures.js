// The timeline by pointer, wheel and keys. `acts` are the timeline's own functions.

/** @import { Band } from "./bands.js" */
/** @import { Span, Which } from "../types.d.ts" */

/**
 * @typedef {object} Moves
 * @property {(lane: number, round: number) => void} choose
 * @property {(seconds: number) => void} pan
 * @property {(factor: number, about?: number) => void} zoom about a second
 * @property {(span: Span | null) => void} look null: at the whole run
 *
 * @typedef {Moves & {
 *   roundAt: (event: MouseEvent) => Which,
 *   timeAt: (x: number) => number,
 *   hover: (which: Which) => void,
 *   pixels: (by: number) => number,
 *   zoomed: () => boolean,
 * }} Pointed `timeAt` and `pixels`: in seconds
 *
 * @typedef {Moves & { bands: () => Band[], chosen: () => Which, span: () => number }} Typed `span`: the seconds in view
 */

/**
 * Hover tells, a press chooses, dragging pans, two fingers or Ctrl+wheel zoom, a double click shows the whole run.
 * @param {SVGSVGElement} svg
 * @param {Pointed} acts
 */
export function pointerOn(svg, acts) {
  const nothing = { lane: 0, round: 0 };
  /** @type {Map<number, number>} */
  const fingers = new Map(); // the x of each pointer that is down
  const inside = (/** @type {number} */ x) => x - svg.getBoundingClientRect().left;
  let dragged = 0;

  svg.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.clientX);
    dragged = fingers.size > 1 ? Infinity : 0;
  });
  svg.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before === undefined) return acts.hover(acts.roundAt(event));
    const moved = event.clientX - before;
    dragged += Math.abs(moved);
    if (dragged < 5) return;
    svg.setPointerCapture(event.pointerId);
    acts.hover(nothing);
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (other === undefined) acts.pan(acts.pixels(-moved));
    else {
      const factor = Math.abs((before - other) / (event.clientX - other || 1));
      acts.zoom(Math.min(2, Math.max(0.5, factor)), acts.timeAt(inside(other)));
    }
    fingers.set(event.pointerId, event.clientX);
  });
  for (const name of /** @type {const} */ (["pointerup", "pointercancel", "lostpointercapture"])) {
    svg.addEventListener(name, (event) => fingers.delete(event.pointerId));
  }
  svg.addEventListener("pointerleave", (event) => {
    fingers.delete(event.pointerId);
    if (event.pointerType === "mouse") acts.hover(nothing);
  });
  svg.addEventListener("click", (event) => {
    if (dragged >= 5) return;
    const { lane, round } = acts.roundAt(event);
    acts.choose(lane, round);
  });
  svg.addEventListener("dblclick", () => acts.look(null));

  /** @param {WheelEvent} event */
  const wheel = (event) => {
    const sideways = acts.zoomed() && Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !sideways) return;
    event.preventDefault();
    acts.hover(nothing);
    if (sideways) return acts.pan(acts.pixels(event.deltaX));
    acts.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 200), acts.timeAt(inside(event.clientX)));
  };
  svg.addEventListener("wheel", wheel, { passive: false });
}

/**
 * Left and right go from round to round, up and down from lane to lane; + and - zoom, Shift with an arrow pans.
 * @param {HTMLElement} plot
 * @param {Typed} acts
 */
export function keysOn(plot, acts) {
  plot.addEventListener("keydown", (event) => {
    const bands = acts.bands();
    if (event.ctrlKey || event.metaKey || event.altKey || !bands.length) return;
    const { lane, round } = acts.chosen();
    const rounds = bands[lane].all.length;
    const step = (/** @type {number} */ to) => rounds && acts.choose(lane, Math.min(Math.max(to, 1), rounds));
    const side = (/** @type {number} */ by) => (event.shiftKey ? acts.pan((by * acts.span()) / 4) : step(round + by));
    const change = (/** @type {number} */ by) => {
      const next = Math.min(Math.max(lane + by, 0), bands.length - 1);
      const start = bands[lane].all[round - 1]?.times.start ?? 0;
      acts.choose(next, Math.min(bands[next].until(start) + 1, bands[next].all.length));
    };
    /** @type {Record<string, () => unknown>} */
    const moves = {
      ArrowLeft: () => side(-1),
      ArrowRight: () => side(1),
      ArrowUp: () => change(-1),
      ArrowDown: () => change(1),
      Home: () => step(1),
      End: () => step(rounds),
      "+": () => acts.zoom(0.5),
      "=": () => acts.zoom(0.5),
      "-": () => acts.zoom(2),
      0: () => acts.look(null),
      Escape: () => acts.choose(lane, 0),
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    move();
  });
}
