// What a token's element says and looks like.

/** @import { Round, Token } from "../types.d.ts" */

/**
 * The classes of a token's element, and how many characters of leading white space stand before it, as those take no
 * mark.
 * @param {Token} token
 * @param {boolean} dropped whether it is shown as rejected
 */
export function cellOf({ text, kind, special, forced }, dropped) {
  const space = special || dropped ? 0 : text.length - text.trimStart().length;
  const blank = space > 0 && space === text.length;
  const also = { blank, special, forced, part: !text };
  const classes = ["tok", kind, ...Object.entries(also).flatMap(([name, holds]) => (holds ? [name] : []))];
  return { classes: classes.join(" "), spaces: blank ? 0 : space };
}

const FENCE = "```";

/** Says of each token of an output, as they come, whether it is code between two fences of Markdown. */
export function codeReader() {
  let inside = false;
  let read = ""; // since the last fence
  return (/** @type {string} */ text) => {
    const before = inside;
    read += text;
    for (let at = read.indexOf(FENCE); at >= 0; at = read.indexOf(FENCE)) {
      inside = !inside;
      read = read.slice(at + FENCE.length);
    }
    read = read.slice(1 - FENCE.length);
    return before || inside;
  };
}

/**
 * Says in words where a drafted token stands in its round's draft; "" for the target's own.
 * @param {Pick<Round, "drafted" | "tree">} round
 */
export function placesOf({ drafted, tree }) {
  const deepest = Math.max(...drafted.map(({ position }) => position));
  const where = tree ? `${deepest}, in a tree of ${drafted.length}` : String(drafted.length);
  return (/** @type {Token} */ { position }) => (position ? `${position} of ${where}` : "");
}

/**
 * White space made visible. It stays breakable: the glyph stands beside the character that it names.
 * @param {string} text
 */
export const visible = (text) =>
  text
    .replace(/ /g, "␣\u200b")
    .replace(/\n/g, "↵\n")
    .replace(/\t/g, "⇥\t")
    .replace(/\u00a0/g, "⍽")
    .replace(/\r/g, "␍");
