// The tooltip that says what a token is: one for the page.

const kinds = {
  plain: "Chosen by the target; nothing was drafted.",
  accepted: "Draft token, accepted by the target.",
  rejected: "Draft token, rejected: the target chose another one.",
  unverified: "Draft token, not checked: it follows a rejected one.",
  correction: "Correction: the model's replacement for the rejected token.",
  bonus: "Bonus: accepted to the end of a branch, and the pass gave one token more.",
};

// The element of the page with this id, made anew: an earlier copy of these scripts may have left one.
function only(id, role) {
  document.getElementById(id)?.remove();
  const node = make("div");
  node.id = id;
  node.setAttribute("role", role);
  node.hidden = true;
  document.body.append(node);
  return node;
}

const tip = only("token-tip", "tooltip");

function probability(value, kind) {
  if (value === undefined) return kind === "unverified" ? "not checked" : "unknown";
  return value > 0 && value < 0.001 ? "< 0.001" : value.toFixed(3);
}

// How speculative sampling decided: it accepts where the uniform number r is below p ÷ q.
function drawn({ draw, p, q, kind }) {
  const [r, ratio] = [draw.toFixed(2), (p / q).toFixed(2)];
  const digits = r === ratio ? 4 : 2; // or the two look alike
  return `r ${draw.toFixed(digits)} ${kind === "accepted" ? "≤" : ">"} p/q ${(p / q).toFixed(digits)}: ${kind}`;
}

function choice(rank) {
  if (!rank) return "not in the drafter's vocabulary";
  const ending = { one: "st", two: "nd", few: "rd", other: "th" }[new Intl.PluralRules("en", { type: "ordinal" }).select(rank)];
  return `drafter's ${rank}${ending} choice`;
}

function rowsOf(token) {
  const rows = [["round", String(token.round)]];
  if (token.place) rows.push(["position", token.place]);
  rows.push(["p (target)", probability(token.p, token.kind)]);
  if (token.place) rows.push(["q (drafter)", probability(token.q, "")]);
  if (token.draw !== undefined) rows.push(["decided by", drawn(token)]);
  if (token.margin !== undefined) rows.push(["margin", `${token.margin.toFixed(2)} logits`]);
  if (token.rank !== undefined) rows.push(["target's choice", choice(token.rank)]);
  rows.push(["token id", token.id === undefined ? "unknown" : String(token.id)]);
  rows.push(["text", token.text ? JSON.stringify(token.text) : "part of a character; a later token completes it"]);
  return rows;
}

function showTip(span) {
  const list = make("dl");
  for (const [name, value] of rowsOf(span.token)) {
    const fact = make("dd", "", value);
    fact.dir = "auto";
    list.append(make("dt", "", name), fact);
  }
  tip.replaceChildren(make("p", "", kinds[span.token.kind]), list);
  tip.hidden = false;
  document.querySelectorAll(".tok[aria-describedby]").forEach((other) => other.removeAttribute("aria-describedby"));
  span.setAttribute("aria-describedby", tip.id);
  putBeside(tip, span);
}

function hideTip() {
  tip.hidden = true;
}

// Puts a fixed box below `node`, or above it where there is more room, never over it, and wholly in the window.
function putBeside(box, node) {
  const gap = 8;
  const rects = [...node.getClientRects()];
  const top = Math.min(...rects.map((rect) => rect.top));
  const bottom = Math.max(...rects.map((rect) => rect.bottom));
  const below = innerHeight - bottom - 2 * gap;
  const above = top - 2 * gap;
  box.style.maxHeight = "";
  const under = box.offsetHeight <= below || below >= above;
  box.style.maxHeight = `${Math.max(under ? below : above, 120)}px`;
  const wide = document.documentElement.clientWidth - box.offsetWidth - gap;
  box.style.left = `${Math.max(gap, Math.min(rects.at(-1).left, wide))}px`;
  box.style.top = `${under ? Math.min(bottom + gap, innerHeight - 120 - gap) : Math.max(gap, top - gap - box.offsetHeight)}px`;
}
