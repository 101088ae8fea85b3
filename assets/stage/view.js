// The part of a run that the timeline shows: seconds to pixels and back, zoom and pan. Knows no elements.

import { BREAK, cutOf, EDGE, partOf, wholeOf } from "./scale.js";

/** @import { Round, Span, Which } from "../types.d.ts" */

/**
 * A lane's rounds between two heights, in pixels. `longest`: the seconds of the longest round after the first;
 * `until`: how many rounds had ended at a time; `end`: of the last, in seconds.
 * @typedef {{ all: Round[], longest: number, top: number, bottom: number, end: number, until: (time: number) => number }} Lane
 */

export class View {
  /** @type {Lane[]} */
  lanes = [];
  running = false;
  width = 0; // pixels
  /** @type {Span | null} */
  part = null; // where the user chose it; else the whole run

  /** The second up to which a long prefill is cut; 0 where none is. */
  get cut() {
    return cutOf(this.lanes);
  }

  get whole() {
    return wholeOf(this.lanes, this.running);
  }

  /** The seconds in view. */
  get span() {
    return this.part ?? this.whole;
  }

  /** The x at which the axis begins. */
  get left() {
    return this.cut ? BREAK : 0;
  }

  /** Pixels a second. */
  get scale() {
    const { from, to } = this.span;
    return Math.max(1, this.width - this.left - EDGE) / (to - from);
  }

  /** @param {number} seconds */
  x(seconds) {
    return this.left + (seconds - this.span.from) * this.scale;
  }

  /** @param {number} x */
  timeAt(x) {
    return this.span.from + (x - this.left) / this.scale;
  }

  /**
   * The box of a round, in pixels; null where the lane has no such round.
   * @param {Which} which
   */
  boxOf({ lane, round }) {
    const found = this.lanes[lane]?.all[round - 1];
    if (!found) return null;
    const { from, to } = this.span;
    const { start, end } = found.times;
    const x = Math.max(this.x(start), from <= this.cut ? 0 : this.left);
    const { top, bottom } = this.lanes[lane];
    const width = Math.max(2, this.x(end) - x);
    return { x, width, y: top, height: bottom - top, visible: end > from && start < to };
  }

  /**
   * The round at a point of the picture; round 0 where there is none.
   * @param {number} x
   * @param {number} y
   * @returns {Which}
   */
  roundAt(x, y) {
    const lane = this.lanes.findIndex(({ top, bottom }) => y >= top - 4 && y <= bottom + 4);
    const found = this.lanes[lane];
    const time = this.timeAt(x);
    if (!found?.all.length || time > found.end + 6 / this.scale) return { lane: 0, round: 0 };
    return { lane, round: Math.min(found.until(time) + 1, found.all.length) };
  }

  /** @param {Span | null} next null for the whole */
  look(next) {
    this.part = next && partOf(next, this.whole);
  }

  /**
   * @param {number} factor of the seconds in view
   * @param {number} about the second that keeps its place
   */
  zoom(factor, about) {
    const { from, to } = this.span;
    this.look({ from: about - (about - from) * factor, to: about + (to - about) * factor });
  }

  /** @param {number} seconds */
  pan(seconds) {
    const { from, to } = this.span;
    if (this.part) this.look({ from: from + seconds, to: to + seconds });
  }

  /**
   * Moves the part in view to these seconds where they are outside it. Whether it moved.
   * @param {number} from
   * @param {number} to
   */
  reveal(from, to) {
    const now = this.span;
    if (!this.part || (from >= now.from && to <= now.to)) return false;
    const middle = (from + to) / 2;
    const half = (now.to - now.from) / 2;
    this.look({ from: middle - half, to: middle + half });
    return true;
  }
}
