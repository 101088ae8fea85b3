// A round's draft as a drawing, left to right, as branches.js lays it out: the token that the target added is ringed.
// Labels enter through textContent.

import { BOX, draftTree, GAP, placeNodes } from "./branches.js";
import { button, make, svg } from "./core.js";
import { oneLine, short } from "./words.js";

/** @import { Round } from "../types.d.ts" */

const ruler = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
ruler.font = '13px ui-sans-serif, system-ui, "Noto Sans Tamil", sans-serif';

/**
 * The drawing of a round with its text alternative. `unfold()` is called when all of it is wanted.
 * @param {Round} round
 * @param {boolean} unfolded
 * @param {() => void} unfold
 */
export function draftPicture(round, unfolded, unfold) {
  const { root, total, hidden } = draftTree(round, unfolded);
  const placed = placeNodes(root, (text) => ruler.measureText(text).width);
  const picture = make("div", "draft", drawNodes(placed, unfold), spoken(round));
  if (hidden) {
    picture.append(button("", `Show all ${total} drafted tokens`, unfold));
  }
  return picture;
}

/**
 * @param {ReturnType<typeof placeNodes>} places
 * @param {() => void} unfold
 */
function drawNodes({ placed, width, height }, unfold) {
  const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const middle = BOX / 2;
  for (const { node, parent, x, y } of placed) {
    if (!parent) continue;
    const [x1, y1, y2] = [parent.x + parent.width, parent.y + middle, y + middle];
    const { q, kind } = node.token ?? {};
    drawing.append(
      svg("path", {
        class: `link ${kind ?? "more"}${node.own ? " own" : ""}`,
        d: `M${x1} ${y1}C${x1 + 14} ${y1} ${x1 + 8} ${y2} ${x1 + GAP} ${y2}H${x}`,
        "stroke-width": q === undefined ? 1.5 : 1 + 6 * q,
      }),
    );
  }
  for (const { node, label, x, y, width: wide } of placed) {
    if (node.token) {
      const { kind, p, q, special } = node.token;
      const chances = node.own ? `p ${short(p)}` : `q ${short(q)} · p ${short(p)}`;
      const box = svg("rect", { x, y, width: wide, height: BOX, rx: node.own ? BOX / 2 : 3 });
      const text = svg(
        "text",
        { class: special ? "label special" : "label", x: x + wide / 2, y: y + 15, "text-anchor": "middle" },
        label,
      );
      const small = svg("text", { class: "chances", x: x + wide / 2, y: y + 28, "text-anchor": "middle" }, chances);
      drawing.append(svg("g", { class: `node ${kind}${node.own ? " own" : ""}` }, box, text, small));
    } else if (node.more) {
      const more = svg(
        "g",
        { class: "node more" },
        svg("rect", { x, y: y + 6, width: wide, height: BOX - 12, rx: 11 }),
      );
      more.append(svg("text", { x: x + wide / 2, y: y + middle + 4, "text-anchor": "middle" }, label));
      more.addEventListener("click", unfold);
      drawing.append(more);
    } else {
      drawing.append(svg("circle", { class: "start", cx: x + 5, cy: y + middle, r: 4 }));
    }
  }
  return make("div", "drawing", drawing);
}

/**
 * The draft as a list for screen readers.
 * @param {Round} round
 */
function spoken({ drafted, own }) {
  const list = make("ul", "spoken");
  drafted.forEach(({ text, kind, p, q, position, parent = -1 }) => {
    const after = parent >= 0 ? ` after “${oneLine(drafted[parent].text)}”` : "";
    const judged = kind === "unverified" ? "not checked" : kind;
    list.append(
      make("li", "", `Position ${position}${after}: “${oneLine(text)}”, q ${short(q)}, p ${short(p)}, ${judged}`),
    );
  });
  if (own) list.append(make("li", "", `The model's own token: “${oneLine(own.text)}”, p ${short(own.p)}, ${own.kind}`));
  return list;
}
