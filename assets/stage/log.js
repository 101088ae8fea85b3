// The stage's value as it comes from Python, and a lane's log.

/** @import { Packed, Round, StageValue } from "../types.d.ts" */

/**
 * The stage's value, from the form in which views/stage.py packs it.
 * @param {Packed} packed
 * @returns {StageValue}
 */
export function unpacked({ rest, logs }) {
  const value = JSON.parse(rest);
  logs.forEach((log, i) => (value.lanes[i].log = log));
  return value;
}

/** A lane's log, read once: its rounds, appended to as the log grows. */
export class Rounds {
  constructor() {
    /** @type {Round[]} */
    this.all = [];
    this.read = "";
    this.restarted = false;
  }

  /**
   * Returns the rounds that are new; all of them, with `restarted` set and a new list, if the log is another one.
   * @param {string} log
   */
  update(log) {
    this.restarted = !log.startsWith(this.read);
    if (this.restarted) {
      this.all = [];
      this.read = "";
    }
    /** @type {Round[]} */
    const fresh = log
      .slice(this.read.length)
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line));
    this.all.push(...fresh);
    this.read = log;
    return fresh;
  }

  /**
   * How many rounds had ended at a time.
   * @param {number} time
   */
  until(time) {
    let low = 0,
      high = this.all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.all[middle].times.end <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/**
 * The drafted tokens that were accepted.
 * @param {Pick<Round, "drafted">} round
 */
export const acceptedOf = ({ drafted }) => drafted.filter(({ kind }) => kind === "accepted");

/**
 * How many tokens a round added to the output.
 * @param {Pick<Round, "drafted" | "own">} round
 */
export const gained = (round) => acceptedOf(round).length + (round.own ? 1 : 0);

/**
 * How many tokens rounds added to the output.
 * @param {Round[]} rounds
 */
export const tokensOf = (rounds) => rounds.reduce((sum, round) => sum + gained(round), 0);

/**
 * The time from each output token to the next, in seconds, sorted. Tokens of one round come together.
 * @param {Round[]} rounds
 */
export function gapsOf(rounds) {
  return rounds
    .flatMap((round, i) => {
      const first = i && gained(round) ? [round.times.end - rounds[i - 1].times.end] : [];
      return [...first, ...Array(Math.max(0, gained(round) - 1)).fill(0)];
    })
    .sort((a, b) => a - b);
}
