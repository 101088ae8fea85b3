// Token panels. A lane's log is append-only, one JSON line a round; each new line becomes spans.
// All text enters through textContent: what a model writes is never markup.

const kinds = {
  plain: "Chosen by the target; nothing was drafted.",
  accepted: "Draft token, accepted by the target.",
  rejected: "Draft token, rejected: the target chose another one.",
  unverified: "Draft token, not checked: it follows a rejected one.",
  correction: "Correction: the model's replacement for the rejected token.",
  bonus: "Bonus: accepted to the end of a branch, and the pass gave one token more.",
  fork: "Draft tree: several candidates per position. Click to expand.",
};

// Makes `panel` the token panel of the lane with this index. `draw(rounds, restarted)` appends new rounds, or starts
// again; `mark(difference)` shows where the outputs of the lanes differ.
function tokenPanel(panel, lane) {
  let rounds = 0;

  function draw(fresh, restarted) {
    if (restarted) {
      panel.replaceChildren();
      hideTip();
      rounds = 0;
    }
    if (!fresh.length) return;
    const atEnd = panel.scrollHeight - panel.scrollTop - panel.clientHeight < 40;
    const first = !panel.firstChild;
    panel.append(...fresh.map((round) => roundOf(round, ++rounds)));
    if (first) panel.querySelector(".tok").tabIndex = 0;
    if (atEnd) panel.scrollTop = panel.scrollHeight;
  }

  function mark(difference) {}

  // One tab stop a panel; arrow keys move from token to token.
  function moveTo(span) {
    panel.querySelectorAll("[tabindex='0']").forEach((other) => (other.tabIndex = -1));
    span.tabIndex = 0;
    span.focus();
    showTip(span);
  }

  panel.addEventListener("pointerover", (event) => {
    const span = event.target.closest(".tok");
    if (span) showTip(span);
  });
  panel.addEventListener("pointerleave", hideTip);
  panel.addEventListener("scroll", hideTip);
  panel.addEventListener("click", (event) => {
    const span = event.target.closest(".tok");
    if (!span) return;
    moveTo(span);
    span.unfold?.();
  });
  panel.addEventListener("focusin", (event) => event.target.classList.contains("tok") && showTip(event.target));
  panel.addEventListener("focusout", hideTip);
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hideTip();
    if ((event.key === "Enter" || event.key === " ") && document.activeElement.unfold) {
      event.preventDefault();
      return document.activeElement.unfold();
    }
    const visible = [...panel.querySelectorAll(".tok")].filter((span) => span.getClientRects().length);
    const at = visible.indexOf(document.activeElement);
    const steps = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: visible.length - 1 };
    const next = visible[steps[event.key]];
    if (!next || at < 0) return;
    event.preventDefault();
    moveTo(next);
  });
  document.addEventListener("show-space", () => panel.querySelectorAll(".tok").forEach(write));
  return { draw, mark };
}

function roundOf({ drafted, own, tree }, number) {
  const span = document.createElement("span");
  span.className = "round";
  if (tree) span.append(...treeOf(drafted, number));
  else drafted.forEach((token) => span.append(tokenOf(token, number, `${token.position} of ${drafted.length}`)));
  if (own) span.append(tokenOf(own, number, ""));
  return span;
}

// A draft tree: the branch that was accepted, and a fork that unfolds all of them, one token a line.
function treeOf(drafted, number) {
  const deepest = Math.max(...drafted.map((token) => token.position));
  const node = (i) => tokenOf(drafted[i], number, `${drafted[i].position} of ${deepest}, in a tree of ${drafted.length}`);
  const kept = drafted.map((_, i) => i).filter((i) => drafted[i].kind === "accepted");
  const fork = document.createElement("span");
  fork.className = "tok fork";
  fork.tabIndex = -1;
  fork.dataset.round = number;
  fork.token = { kind: "fork", text: String(drafted.length), round: number, size: drafted.length, kept: kept.length };
  fork.setAttribute("role", "button");
  fork.setAttribute("aria-expanded", "false");
  fork.setAttribute("aria-label", `draft tree (${drafted.length} tokens): click to expand`);
  write(fork);
  fork.unfold = () => {
    const open = fork.nextElementSibling?.classList.contains("tree");
    fork.setAttribute("aria-expanded", String(!open));
    if (open) return fork.nextElementSibling.remove();
    const tree = document.createElement("span");
    tree.className = "tree";
    drafted.forEach(({ p, q, position }, i) => {
      const line = document.createElement("span");
      line.className = "branch";
      line.style.setProperty("--depth", position);
      const chances = document.createElement("small");
      chances.textContent = `q ${probability(q, "")} · p ${probability(p, drafted[i].kind)}`;
      line.append(node(i), chances);
      tree.append(line);
    });
    fork.after(tree);
  };
  return [...kept.map(node), fork];
}

function tokenOf({ id, text, kind, p, q, margin, special, rank }, round, position) {
  const span = document.createElement("span");
  span.className = "tok " + kind;
  if (special) span.classList.add("special");
  if (!text) span.classList.add("part");
  span.tabIndex = -1;
  span.dataset.round = round;
  span.dataset.id = id;
  span.token = { id, text, kind, p, q, margin, round, position, rank };
  write(span);
  return span;
}

// White space made visible stays breakable: the glyph stands beside the character that it names.
function write(span) {
  const { text } = span.token;
  span.textContent = document.body.classList.contains("show-space")
    ? text.replace(/ /g, "␣\u200b").replace(/\n/g, "↵\n").replace(/\t/g, "⇥\t").replace(/\u00a0/g, "⍽").replace(/\r/g, "␍")
    : text;
}

// --- the tooltip: one for the page ---

let tip = document.getElementById("token-tip");
if (!tip) {
  tip = document.createElement("div");
  tip.id = "token-tip";
  tip.role = "tooltip";
  tip.hidden = true;
  document.body.append(tip);
}

function probability(value, kind) {
  if (value === undefined) return kind === "unverified" ? "not checked" : "unknown";
  return value > 0 && value < 0.001 ? "< 0.001" : value.toFixed(3);
}

function choice(rank) {
  if (!rank) return "not in the drafter's vocabulary";
  const ending = { one: "st", two: "nd", few: "rd", other: "th" }[new Intl.PluralRules("en", { type: "ordinal" }).select(rank)];
  return `drafter's ${rank}${ending} choice`;
}

function rowsOf(token) {
  const rows = [["round", String(token.round)]];
  if (token.kind === "fork") return [...rows, ["tokens", String(token.size)], ["accepted", String(token.kept)]];
  if (token.position) rows.push(["position", token.position]);
  rows.push(["p (target)", probability(token.p, token.kind)]);
  if (token.position) rows.push(["q (drafter)", probability(token.q, "")]);
  if (token.margin !== undefined) rows.push(["margin", `${token.margin.toFixed(2)} logits`]);
  if (token.rank !== undefined) rows.push(["target's choice", choice(token.rank)]);
  rows.push(["token id", token.id === undefined ? "unknown" : String(token.id)]);
  rows.push(["text", token.text ? JSON.stringify(token.text) : "part of a character; a later token completes it"]);
  return rows;
}

function showTip(span) {
  const { token } = span;
  const title = document.createElement("p");
  title.textContent = kinds[token.kind];
  const list = document.createElement("dl");
  for (const [name, value] of rowsOf(token)) {
    const term = document.createElement("dt");
    const fact = document.createElement("dd");
    term.textContent = name;
    fact.textContent = value;
    fact.dir = "auto";
    list.append(term, fact);
  }
  tip.replaceChildren(title, list);
  tip.className = token.kind;
  tip.hidden = false;
  document.querySelectorAll(".tok[aria-describedby]").forEach((other) => other.removeAttribute("aria-describedby"));
  span.setAttribute("aria-describedby", tip.id);

  const box = span.getClientRects()[0] || span.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
  const below = box.bottom + 6 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - tip.offsetHeight - 6)}px`;
}

function hideTip() {
  tip.hidden = true;
}
