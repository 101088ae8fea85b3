// A draft as a tree, and where its nodes lie: a column a position, the accepted branch straight along the top, the other
// branches below it, folded where there are many. A chain is a tree of one branch.

import { oneLine } from "./words.js";

/** @import { Round, Token } from "../types.d.ts" */

export const BOX = 34; // pixels: a node's height
export const GAP = 24; // between columns
const ROW = 42; // a node's height and the gap below it
const WIDEST = 132,
  NARROWEST = 104; // of a label
const FOLDED_FROM = 12; // tokens in a draft
const BESIDES = 2; // branches shown beside the accepted one while folded

/**
 * `children` are in the order drawn. `kept`: it is part of the output. `folded`: how many tokens are left out below.
 * `more`: it stands for that many. The root has no token.
 * @typedef {{ token?: Token, own?: boolean, kept?: boolean, children: Node[], folded?: number, more?: number }} Node
 */

/**
 * A node that has its place; x and y of its left upper corner, in pixels.
 * @typedef {{ node: Node, parent: Placed | null, column: number, row: number, label: string,
 *   width: number, x: number, y: number }} Placed
 */

/**
 * The tree of a round, how many tokens were drafted and how many of them are folded away.
 * @param {Pick<Round, "drafted" | "own">} round
 * @param {boolean} unfolded
 */
export function draftTree({ drafted, own }, unfolded) {
  const nodes = drafted.map((token) => ({
    token,
    kept: token.kind === "accepted",
    children: /** @type {Node[]} */ ([]),
  }));
  /** @type {Node} */
  const root = { children: [], kept: true };
  nodes.forEach((node, i) => (nodes[node.token.parent ?? i - 1] ?? root).children.push(node));
  const end = nodes.findLast((node) => node.kept) ?? root;
  if (own) end.children.unshift({ token: own, own: true, kept: true, children: [] });
  const foldable = !unfolded && drafted.length > FOLDED_FROM;
  let hidden = 0;

  /** @param {Node} node */
  function order(node) {
    node.children.sort((a, b) => Number(!!b.kept) - Number(!!a.kept) || (b.token?.q ?? 0) - (a.token?.q ?? 0));
    if (foldable) {
      const shown = node.children.filter((child) => child.kept).length + (node.kept ? BESIDES : 0);
      const left = node.children.slice(shown).reduce((sum, child) => sum + size(child), 0);
      if (left > 1) {
        node.children.length = shown;
        node.folded = left;
        hidden += left;
      }
    }
    node.children.forEach(order);
  }
  order(root);
  return { root, total: drafted.length, hidden };
}

/**
 * @param {Node} node
 * @returns {number}
 */
const size = (node) => node.children.reduce((sum, child) => sum + size(child), 1);

/**
 * Gives each node its place, in the row of its first child; and the size of the whole, in pixels.
 * @param {Node} root
 * @param {(text: string) => number} widthOf the pixels that a text takes
 */
export function placeNodes(root, widthOf) {
  /** @type {Placed[]} */
  const placed = [];
  let rows = 0;

  /** @param {Node} node @param {Placed | null} parent @param {number} column */
  function place(node, parent, column) {
    const at = { node, parent, column, row: rows, label: "", width: 10, x: 0, y: 4 + rows * ROW };
    placed.push(at);
    const below = [...node.children, ...(node.folded ? [{ more: node.folded, children: [] }] : [])];
    below.forEach((child) => place(child, at, column + 1));
    if (!below.length) rows += 1;
  }
  place(root, null, 0);
  const widths = [10];
  for (const at of placed.slice(1)) {
    const { more, token } = at.node;
    at.label = token ? fitted(token.text, widthOf) : `+${more}`;
    at.width = token ? Math.max(NARROWEST, widthOf(at.label) + 16) : widthOf(at.label) + 14;
    widths[at.column] = Math.max(widths[at.column] ?? 0, at.width);
  }
  /** @type {number[]} */
  const lefts = [];
  const right = widths.reduce((left, width, i) => ((lefts[i] = left), left + width + GAP), 1);
  for (const at of placed) at.x = lefts[at.column];
  return { placed, width: right - GAP + 4, height: rows * ROW };
}

/**
 * A text on one line, cut to the widest label.
 * @param {string} text
 * @param {(text: string) => number} widthOf
 */
export function fitted(text, widthOf) {
  const letters = [...new Intl.Segmenter().segment(oneLine(text))].map(({ segment }) => segment);
  if (widthOf(letters.join("")) <= WIDEST) return letters.join("");
  while (letters.length > 1 && widthOf(`${letters.join("")}…`) > WIDEST)
    letters.length -= Math.ceil(letters.length / 8);
  return `${letters.join("")}…`;
}
