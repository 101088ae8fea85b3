// A token panel. The value is an append-only log, one JSON line a round; each new line becomes spans.
// All text enters through textContent: what a model writes is never markup.

const panel = element.querySelector(".tokens");
const kinds = {
  plain: "Chosen by the target: nothing had been drafted.",
  accepted: "Draft token, accepted by the target.",
  rejected: "Draft token, rejected: the target chose another one.",
  unused: "Draft token, never judged: it stood behind the end of what was accepted.",
  correction: "Correction: the target's own token in place of the rejected one.",
  bonus: "Bonus: the whole draft was accepted, and the pass gave one token more.",
};
let drawn = "";
let rounds = 0;

function draw() {
  const log = props.value || "";
  if (!log.startsWith(drawn)) {
    panel.replaceChildren();
    hideTip();
    drawn = "";
    rounds = 0;
  }
  const atEnd = panel.scrollHeight - panel.scrollTop - panel.clientHeight < 40;
  const fresh = document.createDocumentFragment();
  for (const line of log.slice(drawn.length).split("\n")) {
    if (line) fresh.append(roundOf(JSON.parse(line)));
  }
  drawn = log;
  panel.append(fresh);
  if (atEnd) panel.scrollTop = panel.scrollHeight;
  if (!panel.querySelector("[tabindex='0']") && panel.firstChild) panel.querySelector(".tok").tabIndex = 0;
}

function roundOf(round) {
  rounds += 1;
  const span = document.createElement("span");
  span.className = "round";
  round.drafted.forEach((token, i) => span.append(tokenOf(token, token.decision, round, i + 1)));
  if (round.target) span.append(tokenOf(round.target, round.target.reason, round, null));
  return span;
}

function tokenOf(token, kind, round, place) {
  const span = document.createElement("span");
  span.className = "tok " + kind;
  if (token.special) span.classList.add("special");
  if (!token.text) span.classList.add("part");
  span.tabIndex = -1;
  span.token = token;
  span.facts = { kind, round: rounds, place, asked: round.lookahead, drafted: round.drafted.length };
  span.dataset.round = rounds;
  span.dataset.id = token.id;
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

document.addEventListener("show-space", () => panel.querySelectorAll(".tok").forEach(write));

// --- the tooltip: one for the page ---

let tip = document.getElementById("token-tip");
if (!tip) {
  tip = document.createElement("div");
  tip.id = "token-tip";
  tip.role = "tooltip";
  tip.hidden = true;
  document.body.append(tip);
}

function probability(value) {
  if (value === null) return "not judged";
  return value > 0 && value < 0.001 ? "< 0.001" : value.toFixed(3);
}

function showTip(span) {
  const { token, facts } = span;
  const rows = [["round", String(facts.round)]];
  if (facts.place) rows.push(["place in draft", `${facts.place} of ${facts.drafted}`]);
  rows.push(["p (target)", probability(token.p)]);
  if (facts.place) rows.push(["q (drafter)", probability(token.q)]);
  rows.push(["margin", token.margin === null ? "not judged" : `${token.margin.toFixed(2)} logits`]);
  rows.push(["token id", String(token.id)]);
  rows.push(["text", token.text ? JSON.stringify(token.text) : "part of a character; a later token completes it"]);

  const title = document.createElement("p");
  title.textContent = kinds[facts.kind];
  const list = document.createElement("dl");
  for (const [name, value] of rows) {
    const term = document.createElement("dt");
    const fact = document.createElement("dd");
    term.textContent = name;
    fact.textContent = value;
    fact.dir = "auto";
    list.append(term, fact);
  }
  tip.replaceChildren(title, list);
  tip.className = facts.kind;
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

panel.addEventListener("pointerover", (event) => {
  const span = event.target.closest(".tok");
  if (span) showTip(span);
});
panel.addEventListener("pointerleave", hideTip);
panel.addEventListener("scroll", hideTip);
panel.addEventListener("click", (event) => {
  const span = event.target.closest(".tok");
  if (span) moveTo(span);
});
panel.addEventListener("focusin", (event) => event.target.classList.contains("tok") && showTip(event.target));
panel.addEventListener("focusout", hideTip);

// --- one tab stop a panel; arrow keys move from token to token ---

function moveTo(span) {
  panel.querySelectorAll("[tabindex='0']").forEach((other) => (other.tabIndex = -1));
  span.tabIndex = 0;
  span.focus({ preventScroll: false });
  showTip(span);
}

panel.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return hideTip();
  const visible = [...panel.querySelectorAll(".tok")].filter((span) => span.getClientRects().length);
  const at = visible.indexOf(document.activeElement);
  const step = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: visible.length - 1 };
  const next = visible[step[event.key]];
  if (!next || at < 0) return;
  event.preventDefault();
  moveTo(next);
});

watch("value", draw);
draw();
