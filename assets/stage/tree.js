// A round's draft as a drawing, left to right: a column a position, the accepted branch straight along the top, the
// token that the target added ringed, the other branches below it, folded where there are many. A chain is a tree of
// one branch. Labels enter through textContent.

const plainPass = { seconds: null }; // the baseline's median pass, if known; set by stage.js

const ROW = 42, BOX = 34, GAP = 24, WIDEST = 132, NARROWEST = 80; // pixels
const FOLDED_FROM = 12; // tokens in a draft
const BESIDES = 2; // branches shown beside the accepted one while folded

const ruler = document.createElement("canvas").getContext("2d");

// The drawing of a round with its text alternative. `unfold()` is called when all of it is wanted.
function draftPicture(round, unfolded, unfold) {
  const { root, total, hidden } = draftTree(round, unfolded);
  const placed = placeNodes(root);
  const picture = make("div", "draft", drawNodes(placed, unfold), spoken(round));
  if (hidden) {
    const more = make("button", "", `Show all ${total} drafted tokens`);
    more.type = "button";
    more.addEventListener("click", unfold);
    picture.append(more);
  }
  return picture;
}

// Nodes {token, children, folded}: children in the order drawn, `folded` the number of tokens left out below.
function draftTree({ drafted, own }, unfolded) {
  const nodes = drafted.map((token) => ({ token, children: [] }));
  const root = { children: [], kept: true };
  nodes.forEach((node, i) => (nodes[node.token.parent ?? i - 1] ?? root).children.push(node));
  nodes.forEach((node) => (node.kept = node.token.kind === "accepted"));
  const end = nodes.findLast((node) => node.kept) ?? root;
  if (own) end.children.unshift({ token: own, own: true, kept: true, children: [] });
  const foldable = !unfolded && drafted.length > FOLDED_FROM;
  let hidden = 0;
  const size = (node) => node.children.reduce((sum, child) => sum + size(child), 1);

  function order(node) {
    node.children.sort((a, b) => !!b.kept - !!a.kept || (b.token.q ?? 0) - (a.token.q ?? 0));
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

// Gives each node a column, a row and its label's width. A node is in the row of its first child.
function placeNodes(root) {
  const placed = [];
  let rows = 0;

  function place(node, parent, column) {
    const at = { node, parent, column };
    placed.push(at);
    const first = rows;
    const below = [...node.children, ...(node.folded ? [{ more: node.folded, children: [] }] : [])];
    below.forEach((child) => place(child, at, column + 1));
    if (!below.length) rows += 1;
    at.row = first;
  }
  place(root, null, 0);
  const widths = [10];
  for (const at of placed.slice(1)) {
    at.label = at.node.more ? `+${at.node.more}` : fitted(at.node.token);
    at.width = at.node.more ? ruler.measureText(at.label).width + 14 : Math.max(NARROWEST, ruler.measureText(at.label).width + 16);
    widths[at.column] = Math.max(widths[at.column] ?? 0, at.width);
  }
  const lefts = [];
  widths.reduce((left, width, i) => ((lefts[i] = left), left + width + GAP), 1);
  placed.forEach((at) => {
    at.x = lefts[at.column];
    at.y = 4 + at.row * ROW;
    at.width ??= 10;
  });
  return { placed, width: lefts.at(-1) + widths.at(-1) + 4, height: rows * ROW };
}

function drawNodes({ placed, width, height }, unfold) {
  const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const middle = BOX / 2;
  for (const { node, parent, x, y } of placed.slice(1)) {
    const [x1, y1, y2] = [parent.x + parent.width, parent.y + middle, y + middle];
    const { q, kind } = node.token ?? {};
    drawing.append(svg("path", {
      class: `link ${kind ?? "more"}${node.own ? " own" : ""}`,
      d: `M${x1} ${y1}C${x1 + 14} ${y1} ${x1 + 8} ${y2} ${x1 + GAP} ${y2}H${x}`,
      "stroke-width": q === undefined ? 1.5 : 1 + 6 * q,
    }));
  }
  for (const { node, label, x, y, width: wide } of placed) {
    if (!label) {
      drawing.append(svg("circle", { class: "start", cx: x + 5, cy: y + middle, r: 4 }));
    } else if (node.more) {
      const more = svg("g", { class: "node more" }, svg("rect", { x, y: y + 6, width: wide, height: BOX - 12, rx: 11 }));
      more.append(svg("text", { x: x + wide / 2, y: y + middle + 4, "text-anchor": "middle" }, label));
      more.addEventListener("click", unfold);
      drawing.append(more);
    } else {
      const { kind, p, q, special } = node.token;
      const chances = node.own ? `p ${short(p)}` : `q ${short(q)} · p ${short(p)}`;
      const box = svg("rect", { x, y, width: wide, height: BOX, rx: node.own ? BOX / 2 : 3 });
      const text = svg("text", { class: special ? "label special" : "label", x: x + wide / 2, y: y + 15, "text-anchor": "middle" }, label);
      const small = svg("text", { class: "chances", x: x + wide / 2, y: y + 28, "text-anchor": "middle" }, chances);
      drawing.append(svg("g", { class: `node ${kind}${node.own ? " own" : ""}` }, box, text, small));
    }
  }
  return make("div", "drawing", drawing);
}

const short = (value) => (value === undefined ? "–" : value > 0 && value < 0.01 ? "< .01" : value.toFixed(2));

// A token's text on one line, cut to the widest label.
function fitted(token) {
  ruler.font = '13px ui-sans-serif, system-ui, "Noto Sans Tamil", sans-serif';
  const letters = [...new Intl.Segmenter().segment(oneLine(token.text))].map(({ segment }) => segment);
  if (ruler.measureText(letters.join("")).width <= WIDEST) return letters.join("");
  while (letters.length > 1 && ruler.measureText(letters.join("") + "…").width > WIDEST) letters.length -= Math.ceil(letters.length / 8);
  return letters.join("") + "…";
}

// Spaces at the ends and line breaks made visible, for a label.
function oneLine(text) {
  if (!text) return "(part)";
  const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍");
  return shown.trim() ? shown.trim() : shown.replace(/\s/g, "␣");
}

// The same for a screen reader.
function spoken({ drafted, own }) {
  const list = make("ul", "spoken");
  drafted.forEach(({ text, kind, p, q, position, parent }) => {
    const after = parent >= 0 ? ` after “${oneLine(drafted[parent].text)}”` : "";
    const judged = kind === "unverified" ? "not checked" : kind;
    list.append(make("li", "", `Position ${position}${after}: “${oneLine(text)}”, q ${short(q)}, p ${short(p)}, ${judged}`));
  });
  if (own) list.append(make("li", "", `The model's own token: “${oneLine(own.text)}”, p ${short(own.p)}, ${own.kind}`));
  return list;
}

const milliseconds = (seconds) => `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;

// What the round was, as sentences: what the target chose, what the pass cost beyond one token and what it brought.
function draftSentences({ drafted, own, times }) {
  const sentences = drafted.filter(({ draw }) => draw !== undefined).map((token) => `“${oneLine(token.text)}”: ${drawn(token)}`);
  if (own?.kind === "correction") {
    const rank = own.rank === undefined ? "" : ` (${choice(own.rank)})`;
    sentences.push(`The model chose “${oneLine(own.text)}” instead${rank}.`);
  }
  const gained = drafted.filter(({ kind }) => kind === "accepted").length + (own ? 1 : 0);
  const brought = `${gained} token${gained === 1 ? "" : "s"} instead of 1`;
  if (times.verify === undefined || times.draft === undefined) return [...sentences, `It brought ${brought}.`];
  const beyond = plainPass.seconds === null ? "" : `, ${apart(times.verify - plainPass.seconds)} than a plain pass (${milliseconds(plainPass.seconds)})`;
  sentences.push(`Checking took ${milliseconds(times.verify)}${beyond}, drafting ${milliseconds(times.draft)}. It brought ${brought}.`);
  return sentences;
}

const apart = (seconds) => `${milliseconds(Math.abs(seconds))} ${seconds < 0 ? "less" : "more"}`;
