// The comparison as a picture of 1200 x 630 pixels, drawn on a canvas: headline, equation, speed of each lane, the
// rounds over true time, the beginning of the marked text, prompt, machine and address. Saved where the document hears
// "save-picture".

import { publicAddress } from "../address.js";
import { make } from "./core.js";
import { acceptedOf, Rounds } from "./log.js";
import { equation } from "./verdict.js";

/** @import { Round, StageValue } from "../types.d.ts" */

const CARD = { width: 1200, height: 630, margin: 56, label: 300 };
const INKS = { ink: "#1f2328", quiet: "#57606a", rule: "#d9dde2", plain: "#8b949e", accepted: "#0072b2" };
const TINT = "#cfe5f4"; // of accepted tokens
const BASE = 0.24; // of a lane's height: the pass; on top stands what was guessed right
const SHOWN = 4; // lanes that there is room for
const TEXT = { top: 494, size: 22, line: 32, lines: 2 }; // the marked text

/**
 * Saves the picture of the value that is shown then.
 * @param {() => StageValue} value
 */
export function savesPicture(value) {
  document.addEventListener("save-picture", () =>
    cardOf(value()).toBlob((blob) => {
      const link = make("a");
      link.href = URL.createObjectURL(/** @type {Blob} */ (blob));
      link.download = "speculative-decoding.png";
      link.click();
      URL.revokeObjectURL(link.href);
    }),
  );
}

/**
 * What fills the time of drafting.
 * @param {CanvasRenderingContext2D} pen
 */
function hatched(pen) {
  const tile = make("canvas");
  tile.width = tile.height = 6;
  const inside = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  inside.fillStyle = "#ffffff";
  inside.fillRect(0, 0, 6, 6);
  inside.strokeStyle = INKS.quiet;
  inside.lineWidth = 1.4;
  for (const x of [-6, 0, 6]) {
    inside.moveTo(x - 1, 7);
    inside.lineTo(x + 7, -1);
  }
  inside.stroke();
  return /** @type {CanvasPattern} */ (pen.createPattern(tile, "repeat"));
}

/** @param {StageValue} value */
function cardOf(value) {
  const canvas = make("canvas");
  canvas.width = CARD.width;
  canvas.height = CARD.height;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const firstOf = (/** @type {string[]} */ texts) => (texts[0] ?? "").replace(/\. .*/s, ".");
  const right = CARD.width - CARD.margin,
    hatch = hatched(pen);
  const { figure, meaning, terms, trust, badges, sentences } = value.verdict;
  pen.fillStyle = "#ffffff";
  pen.fillRect(0, 0, CARD.width, CARD.height);
  pen.fillStyle = INKS.accepted;
  pen.fillRect(0, 0, CARD.width, 8);

  write("Speculative Decoding Playground", CARD.margin, 62, { size: 24, weight: 600, ink: INKS.quiet });
  const holds = trust !== "doubtful";
  write(figure, CARD.margin - 4, 168, { size: 104, weight: holds ? 700 : 500, ink: holds ? INKS.ink : INKS.quiet });
  const beside = CARD.margin + pen.measureText(figure).width + 28;
  write(meaning, beside, 124, { size: 24, ink: INKS.quiet, room: right - beside });
  write(firstOf(sentences), beside, 160, { size: 24, room: right - beside });
  if (terms)
    write(
      `= ${equation(terms)
        .slice(1)
        .map((part) => part.textContent)
        .join("")}`,
      CARD.margin,
      226,
      { size: 27, room: right - CARD.margin },
    );
  if (badges.length)
    write(`≈ ${firstOf(badges)}`, CARD.margin, 266, { size: 20, ink: "#8a5a00", room: right - CARD.margin });

  const lanes = value.lanes.slice(0, SHOWN).map(({ title: name, figures, log }) => {
    const rounds = new Rounds();
    rounds.update(log);
    const speed = figures.find(({ label }) => label === "Speed");
    return { name, speed: speed ? `${speed.value} ${speed.unit}` : "", rounds: rounds.all };
  });
  const total = Math.max(...lanes.map(({ rounds }) => rounds.at(-1)?.times.end ?? 0));
  const step = Math.min(84, 168 / lanes.length);
  lanes.forEach(({ name, speed, rounds }, index) => {
    const top = 282 + index * step;
    write(name, CARD.margin, top + step * 0.3, { size: 20, weight: 600, room: CARD.label - 20 });
    write(speed, CARD.margin, top + step * 0.3 + 30, {
      size: 26,
      ink: index ? INKS.accepted : INKS.ink,
      weight: 600,
      room: CARD.label - 20,
    });
    timelineOf(rounds, CARD.margin + CARD.label, top, right - CARD.margin - CARD.label, step * 0.72);
  });
  const note = { size: 16, ink: INKS.quiet, room: right - CARD.margin - CARD.label - 70 }; // beside the axis' name
  write(
    "a block is a step of the model, hatched while drafting; on top, accepted guesses (height = tokens)",
    CARD.margin + CARD.label,
    462,
    note,
  );
  write("time →", right, 462, { ...note, align: "right" });
  textOf(lanes[1].rounds);
  pen.fillStyle = INKS.rule;
  pen.fillRect(CARD.margin, 550, right - CARD.margin, 1);
  write(`Prompt: ${value.asked}`, CARD.margin, 580, { size: 18, room: right - CARD.margin });
  const address = publicAddress();
  write(value.ran, CARD.margin, 608, { size: 17, ink: INKS.quiet, room: right - CARD.margin - (address ? 330 : 0) });
  write(address, right, 608, { size: 17, ink: INKS.quiet, align: "right", room: 320 });
  return canvas;

  /**
   * The beginning of the text, with accepted draft tokens tinted as on the page.
   * @param {Round[]} rounds
   */
  function textOf(rounds) {
    let x = CARD.margin,
      line = 0;
    pen.font = `${TEXT.size}px ui-sans-serif, system-ui, sans-serif`;
    pen.textAlign = "left";
    const tokens = rounds.flatMap((round) => [...acceptedOf(round), ...(round.own ? [round.own] : [])]);
    for (const { text, kind, special } of tokens) {
      let shown = special ? "" : text.replace(/\s+/g, " ");
      if (x + pen.measureText(shown).width > right) {
        shown = shown.trimStart();
        x = CARD.margin;
        line += 1;
      }
      const wide = pen.measureText(shown).width;
      if (line >= TEXT.lines) return;
      const y = TEXT.top + line * TEXT.line;
      pen.fillStyle = TINT;
      if (kind === "accepted") pen.fillRect(x, y - TEXT.size, wide, TEXT.size + 7);
      pen.fillStyle = INKS.ink;
      pen.fillText(shown, x, y);
      x += wide;
    }
  }

  /**
   * A grey block a round, as wide as it took and hatched while it drafted; on top the tokens that were guessed right.
   * @param {Round[]} rounds
   * @param {number} left
   * @param {number} top
   * @param {number} width
   * @param {number} height
   */
  function timelineOf(rounds, left, top, width, height) {
    const scale = width / total;
    const most = Math.max(1, ...lanes.flatMap((lane) => lane.rounds.map((round) => acceptedOf(round).length)));
    const base = height * BASE,
      bottom = top + height;
    pen.fillStyle = INKS.rule;
    pen.fillRect(left, top + height, width, 1);
    let from = 0;
    for (const round of rounds) {
      const { draft = 0, end } = round.times;
      const gap = (end - from) * scale > 3 ? 1 : 0; // blocks narrower than that run together
      const x = left + from * scale,
        wide = (end - from) * scale - gap;
      const up = ((height - base) * acceptedOf(round).length) / most;
      pen.fillStyle = INKS.plain;
      pen.fillRect(x, bottom - base, wide, base);
      pen.fillStyle = hatch;
      if (round.drafted.length) pen.fillRect(x, bottom - base, Math.min(draft * scale, wide), base);
      pen.fillStyle = INKS.accepted;
      pen.fillRect(x, bottom - base - up, wide, up);
      from = end;
    }
  }

  /**
   * One line, smaller or cut where it does not fit.
   * @param {string} text
   * @param {number} x
   * @param {number} y
   * @param {{ size: number, weight?: number, ink?: string, room?: number, align?: CanvasTextAlign }} style
   */
  function write(text, x, y, { size, weight = 400, ink = INKS.ink, room = Infinity, align = "left" }) {
    const font = (/** @type {number} */ pixels) => `${weight} ${pixels}px ui-sans-serif, system-ui, sans-serif`;
    pen.textAlign = align;
    pen.fillStyle = ink;
    pen.font = font(size);
    const wide = pen.measureText(text).width;
    if (wide > room) pen.font = font(Math.max(size * 0.7, (size * room) / wide));
    let shown = text;
    while (shown && pen.measureText(shown + (shown === text ? "" : "…")).width > room) shown = shown.slice(0, -1);
    pen.fillText(shown === text ? text : `${shown}…`, x, y);
  }
}
