// Rounds as Python writes them into a lane's log (views/stage.py).

/** @import { DraftToken, Kind, Round, Token } from "../../assets/types.d.ts" */

/**
 * @param {string} text
 * @param {Kind} kind
 * @param {number} position
 * @param {Partial<Token>} [more]
 * @returns {DraftToken}
 */
export const draft = (text, kind, position, more = {}) => ({ text, kind, position, ...more });

/**
 * A round from one second to another.
 * @param {number} start
 * @param {number} end
 * @param {Partial<Round>} [more]
 * @returns {Round}
 */
export const round = (start, end, more = {}) => ({
  drafted: [],
  own: { text: "a", kind: "plain" },
  times: { start, end },
  ...more,
});

/** Two accepted, one rejected, one not checked, and the correction. */
export const CHAIN = round(1, 1.05, {
  drafted: [
    draft(" the", "accepted", 1, { p: 0.9, q: 0.8 }),
    draft(" cat", "accepted", 2, { p: 0.7, q: 0.6 }),
    draft(" sat", "rejected", 3, { p: 0.1, q: 0.5, rank: 2 }),
    draft(" on", "unverified", 4, { q: 0.4 }),
  ],
  own: { text: " ran", kind: "correction", p: 0.6, rank: 2 },
  times: { start: 1, draft: 0.008, verify: 0.04, end: 1.05 },
});
