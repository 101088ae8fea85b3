// The timeline's scale: which seconds it shows, and where they lie.

/** @import { Round, Span } from "../types.d.ts" */

export const BREAK = 26; // pixels left of the axis, for a prefill that is cut off
export const EDGE = 6; // pixels right of the axis

const TICKS = [1, 2, 5, 10];
const ROOM = [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10]; // for a run that grows, so that its scale seldom changes

/**
 * A lane's rounds; `longest`: the seconds of the longest after the first.
 * @typedef {{ all: Round[], longest: number }} Timed
 */

/**
 * The least of `steps`, times a power of ten, that is not below a value. The last step is 10.
 * @param {number} value above 0
 */
export function niceAbove(value, steps = TICKS) {
  const ten = 10 ** Math.floor(Math.log10(value));
  return ten * /** @type {number} */ (steps.find((step) => step * ten >= value * 0.999));
}

/**
 * Where a long prefill is cut, or 0: up to this second every lane is in its first round, so nothing else is hidden.
 * @param {Timed[]} lanes
 */
export function cutOf(lanes) {
  const begun = lanes.filter(({ all }) => all.length);
  const longest = Math.max(0, ...begun.map((lane) => lane.longest));
  const first = Math.min(...begun.map(({ all }) => all[0].times.end));
  return longest && first > 3 * longest ? first - longest : 0;
}

/**
 * What the timeline shows of a run if nobody zooms: all from the cut on, and while it runs some room.
 * @param {Timed[]} lanes
 * @param {boolean} running
 * @returns {Span}
 */
export function wholeOf(lanes, running) {
  const from = cutOf(lanes);
  const end = Math.max(...lanes.map(({ all }) => all.at(-1)?.times.end ?? 0), 0.001);
  return { from, to: running ? from + niceAbove(end - from, ROOM) : end };
}

/**
 * The part of the whole that is shown where `next` is asked for: within it, and not too small; null for the whole.
 * @param {Span} next
 * @param {Span} all
 * @returns {Span | null}
 */
export function partOf(next, all) {
  if (next.to - next.from >= (all.to - all.from) * 0.999) return null;
  const span = Math.max(next.to - next.from, (all.to - all.from) / 400);
  const from = Math.min(Math.max(next.from, all.from), all.to - span);
  return { from, to: from + span };
}

/**
 * The marks of the axis.
 * @param {Span} span in seconds
 * @param {number} left the x of its start
 * @param {number} k pixels a second
 * @param {number} width of the picture, in pixels
 */
export function ticksOf({ from, to }, left, k, width) {
  const step = niceAbove(((to - from) * 160) / width);
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  const ticks = [];
  for (let at = Math.ceil(from / step - 1e-9) * step; at <= to + step * 1e-6; at += step) {
    const x = left + (at - from) * k;
    ticks.push({ x, anchor: x < 12 ? "start" : x > width - 20 ? "end" : "middle", text: `${at.toFixed(digits)} s` });
  }
  return ticks;
}
