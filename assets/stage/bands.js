// What the timeline draws with: one lane's blocks, and the tooltip of a round.

const BAND = 58; // pixels of a lane's blocks; a lane that gains one token a round takes PLAIN
const PLAIN = 18;
const CAPTION = 20;
const RULER = 18;
const AXIS = 24;
const BREAK = 26; // pixels left of the axis, for a prefill that is cut off
const EDGE = 6; // pixels right of the axis

const inMs = (seconds) =>
  `${(1000 * seconds).toLocaleString("en", { maximumFractionDigits: seconds < 0.1 ? 1 : 0 })} ms`;
const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
const gained = ({ drafted, own }) => drafted.filter(({ kind }) => kind === "accepted").length + (own ? 1 : 0);

const TICKS = [1, 2, 5, 10];
const ROOM = [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10]; // for a run that grows, so that its scale seldom changes

// The least of these times a power of ten that is not below a value.
function niceAbove(value, steps = TICKS) {
  const ten = 10 ** Math.floor(Math.log10(value));
  return ten * steps.find((step) => step * ten >= value * 0.999);
}

// One lane's blocks, drawn in seconds and tokens.
class Band {
  constructor(index) {
    this.blocks = svg("g");
    this.caption = svg("text", { class: "caption", x: 0 });
    this.stub = svg("g", { class: "stub" });
    this.node = svg(
      "g",
      { class: "band", "data-lane": index },
      this.stub,
      svg("g", { "clip-path": "url(#timeline-clip)" }, this.blocks),
    );
    this.clear([]);
  }

  clear(all) {
    this.blocks.replaceChildren();
    Object.assign(this, { all, drawn: 0, most: 1, longest: 0, drafts: false });
  }

  // Draws the rounds that are new: one path for each kind of block, however many rounds came.
  draw(rounds) {
    if (rounds.all !== this.all) this.clear(rounds.all);
    this.until = (time) => rounds.until(time);
    if (this.drawn === this.all.length) return false;
    const paths = { verify: "", draft: "", unknown: "", edge: "" };
    const block = (from, to, height) => (to > from ? `M${from} 0H${to}V${height}H${from}Z` : "");
    for (const round of this.all.slice(this.drawn)) {
      const { start, draft, verify, end } = round.times;
      const height = gained(round);
      if (draft === undefined || verify === undefined) paths.unknown += block(start, end, height);
      else {
        paths.draft += block(start, start + draft, height);
        paths.verify += block(start + draft, end, height);
      }
      paths.edge += `M${start} 0V${height}`;
      this.most = Math.max(this.most, height);
      this.drafts ||= round.drafted.length > 0;
      if (round !== this.all[0]) this.longest = Math.max(this.longest, end - start);
    }
    this.drawn = this.all.length;
    for (const [kind, d] of Object.entries(paths)) if (d) this.blocks.append(svg("path", { class: kind, d }));
    return true;
  }

  // The prefill left of the axis, with a break, where it is cut short.
  drawBreak(needed, unit) {
    this.stub.replaceChildren();
    if (!needed) return;
    const [{ times, ...first }] = this.all;
    const tall = gained(first) * unit;
    const reach = Math.max(8, tall) + 6;
    const edge = (x) => [0, 1, 2, 3, 4].map((i) => `${x + (i % 2 ? 3 : -1)} ${this.bottom - (reach * i) / 4 + 3}`);
    const zigzag = [...edge(BREAK - 12), ...edge(BREAK - 8).reverse()].join("L");
    const kind = times.verify === undefined ? "unknown" : "verify";
    this.stub.append(
      svg("rect", { class: kind, x: 0, y: this.bottom - tall, width: BREAK, height: tall }),
      svg("path", { class: "break", d: `M${zigzag}Z` }),
    );
  }

  // A round's figures, in words.
  facts(round) {
    const { times, drafted, own } = this.all[round - 1];
    const part = (seconds) => (seconds === undefined ? "unknown" : inMs(seconds));
    const accepted = drafted.filter(({ kind }) => kind === "accepted").length;
    return [
      ["draft", part(times.draft)],
      ["verify", part(times.verify)],
      ["whole round", inMs(times.end - times.start)],
      ["tokens gained", String(gained({ drafted, own }))],
      ...(drafted.length ? [["accepted", `${accepted} of ${drafted.length}`]] : []),
    ];
  }

  get end() {
    return this.all.length ? this.all.at(-1).times.end : 0;
  }
}

// Lines and labels of the axis: `from` and `to` in seconds, `k` pixels a second, `left` the x of `from`.
function ticksOf({ from, to, k, left, width, height }) {
  const step = niceAbove(((to - from) * 70) / width);
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  const lines = [];
  for (let at = Math.ceil(from / step - 1e-9) * step; at <= to + step * 1e-6; at += step) {
    const x = left + (at - from) * k;
    const anchor = x < 12 ? "start" : x > width - 20 ? "end" : "middle";
    lines.push(svg("line", { x1: x, x2: x, y1: CAPTION, y2: height - AXIS + 4 }));
    lines.push(svg("text", { x, y: height - 6, "text-anchor": anchor }, `${at.toFixed(digits)} s`));
  }
  return lines;
}

// What the marks mean, and buttons for zoom: `acts` are [text, label, act].
function timelineHead(title, marks, acts) {
  const legend = make("ul", "keys", ...marks.map(([kind, text]) => make("li", kind, make("i"), text)));
  const buttons = make("div", "zoom");
  buttons.setAttribute("role", "group");
  buttons.setAttribute("aria-label", "Zoom");
  for (const [text, label, act] of acts) {
    const button = make("button", "", text);
    Object.assign(button, { type: "button", title: label, onclick: act });
    button.setAttribute("aria-label", label);
    buttons.append(button);
  }
  return make("div", "head", make("h3", "", title), legend, buttons);
}

// --- the tooltip: one for the page ---

const roundTip = only("round-tip", "tooltip");

function showRoundTip(facts, round, at, box) {
  const rows = facts.flatMap(([name, fact]) => [make("dt", "", name), make("dd", "", fact)]);
  roundTip.replaceChildren(
    make("p", "", `Round ${round}${round === 1 ? ", with the prefill" : ""}`),
    make("dl", "", ...rows),
  );
  roundTip.hidden = box.bottom < 0 || box.top > innerHeight;
  const x = Math.min(Math.max(8, box.left + at.x), document.documentElement.clientWidth - roundTip.offsetWidth - 8);
  const below = box.top + at.y + at.height + 8;
  const fits = below + roundTip.offsetHeight < innerHeight;
  roundTip.style.left = `${x}px`;
  roundTip.style.top = `${fits ? below : box.top + at.y - roundTip.offsetHeight - 8}px`;
}
