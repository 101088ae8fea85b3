// Replays the lanes on one clock, in the browser alone: play, a scrubber, a pace, and steps from round to round with
// the phases of that round in words. At rest everything is shown (time is Infinity).

import { hear, make, tell } from "./core.js";
import { acceptedOf } from "./log.js";
import { count, drawn, inMs, isDecided, otherRule, probability } from "./words.js";

/** @import { Rounds } from "./log.js" */
/** @import { Decided, Round, StageValue, Token } from "../types.d.ts" */

const PACES = [0.25, 0.5, 1, 2, 4];
const FRAME_MS = 40; // between two updates while playing: the eye needs no more, and another run may need the cores
const ONCE_S = 5; // of the replay that follows a run, at most
const HOLD_MS = 2500; // what a loop shows at its end

export function replayPart() {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const play = make("button", "play");
  const back = make("button", "", "◂", make("span", "", " Round"));
  const forth = make("button", "", make("span", "", "Round "), "▸");
  for (const button of [play, back, forth]) button.type = "button";
  back.setAttribute("aria-label", "Back one round");
  forth.setAttribute("aria-label", "Forward one round");
  const scrubber = make("input");
  Object.assign(scrubber, { type: "range", min: 0, step: "any" });
  scrubber.setAttribute("aria-label", "Time of the replay");
  const clock = make("span", "clock");
  const pace = make(
    "select",
    "",
    ...PACES.map((times) => new Option(`${times}×`, String(times), times === 1, times === 1)),
  );
  pace.setAttribute("aria-label", "Pace, in times the recorded one");
  const bar = make("div", "bar", play, back, forth, scrubber, clock, pace);
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Replay");
  const title = make("p", "which");
  const steps = make("ol", "phases");
  const words = make("div", "words", title, steps);
  words.setAttribute("aria-live", "polite");
  const node = make("section", "replay", bar);
  // Below the text: what appears there moves no token under the pointer.
  const said = make("section", "replay", words);
  said.setAttribute("aria-label", "The round in words");
  said.hidden = true;
  node.setAttribute("aria-label", "Replay");
  node.hidden = true;

  /** @type {Rounds[]} */
  let rounds = [];
  /** @type {Round[][]} */
  let known = [];
  /** @type {string[]} */
  let names = [];
  let sampled = false;
  let total = 0;
  let time = Infinity;
  let frame = 0;
  /** @type {StageValue["replay"]} */
  let alone = ""; // how it goes on, if it began by itself
  let begun = false;
  let chosen = { lane: 1, round: 0 };

  // --- time ---

  /** @param {number} next */
  function seek(next) {
    time = next;
    tell("seek", { time });
    const shown = Math.min(time, total);
    scrubber.value = String(shown);
    clock.textContent = `${shown.toFixed(2)} of ${total.toFixed(2)} s`;
    scrubber.setAttribute("aria-valuetext", `${shown.toFixed(2)} of ${total.toFixed(2)} seconds`);
  }

  /** @param {StageValue["replay"]} itself */
  function start(itself) {
    if (time >= total) seek(0);
    alone = itself;
    const faster = alone === "once" ? Math.max(1, total / ONCE_S) : 1;
    let last = performance.now();
    let ended = 0;
    const tick = (/** @type {number} */ now) => {
      frame = requestAnimationFrame(tick);
      if (now - last < FRAME_MS) return;
      const next = time + ((now - last) / 1000) * Number(pace.value) * faster;
      last = now;
      if (next < total) return seek(next);
      if (time < total) seek(total);
      ended ||= now;
      if (alone !== "loop") return rest();
      if (now - ended < HOLD_MS) return;
      ended = 0;
      seek(0);
    };
    frame = requestAnimationFrame(tick);
    label();
  }

  function pause() {
    cancelAnimationFrame(frame);
    frame = 0;
    alone = "";
    label();
  }

  function rest() {
    pause();
    if (time !== Infinity) seek(Infinity);
  }

  function label() {
    play.textContent = frame ? "❚❚ Pause" : "▶ Replay";
    tellPhases();
  }

  // Whatever the user does ends a replay that began by itself.
  for (const name of ["pointerdown", "keydown", "wheel", "touchmove"]) {
    const end = (/** @type {Event} */ { target }) => {
      if (!alone) return;
      if (target instanceof Node && bar.contains(target)) alone = "";
      else rest();
    };
    addEventListener(name, end, { capture: true, passive: true });
  }

  // --- steps ---

  /** @param {number} by */
  function step(by) {
    pause();
    const all = rounds[chosen.lane].all;
    const now = time === Infinity && chosen.round ? chosen.round : rounds[chosen.lane].until(time);
    const round = Math.min(Math.max(now + by, 0), all.length);
    seek(round ? all[round - 1].times.end : 0);
    tell("select", { lane: chosen.lane, round });
  }

  hear("select", ({ lane, round }) => {
    chosen = { lane, round };
    tellPhases();
  });

  function tellPhases() {
    const round = rounds[chosen.lane]?.all[chosen.round - 1];
    said.hidden = frame !== 0 || !round;
    if (said.hidden) return;
    title.textContent = `${names[chosen.lane]}, round ${chosen.round} of ${rounds[chosen.lane].all.length}`;
    steps.replaceChildren(
      ...phasesOf(round, sampled).map(([name, ...parts]) =>
        make("li", name.toLowerCase(), make("b", "", name), make("span", "", ...parts)),
      ),
    );
  }

  play.addEventListener("click", () => (frame ? pause() : start("")));
  back.addEventListener("click", () => step(-1));
  forth.addEventListener("click", () => step(1));
  scrubber.addEventListener("input", () => {
    pause();
    seek(Number(scrubber.value) >= total ? Infinity : Number(scrubber.value));
  });
  node.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => step(-1), ArrowRight: () => step(1) }[event.key];
    if (!act || event.target === pace || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  // --- the value ---

  /** @param {StageValue} value @param {Rounds[]} logs */
  function show(value, logs) {
    rounds = logs;
    names = value.lanes.map(({ name }) => name);
    sampled = value.sampled;
    const running = value.lanes.some(({ state }) => state === "running" || state === "waiting");
    const another = logs.length !== known.length || logs.some(({ all }, index) => all !== known[index]);
    known = logs.map(({ all }) => all);
    if (running || another) rest();
    if (another) {
      chosen = { lane: logs.length - 1 && 1, round: 0 };
      begun = false;
      tellPhases();
    }
    for (const control of [play, back, forth, scrubber, pace]) control.disabled = running;
    node.hidden = !running && !logs.some(({ all }) => all.length);
    if (running) {
      scrubber.value = scrubber.max;
      clock.textContent = "";
    }
    if (running || node.hidden) return;
    total = Math.max(...logs.map(({ all }) => all.at(-1)?.times.end ?? 0));
    scrubber.max = String(total);
    seek(time);
    if (value.replay && !begun && !calm.matches) start(value.replay);
    begun ||= value.replay !== ""; // a run may measure on once the lanes that are shown have ended
  }
  label();
  return { node, said, show };
}

/**
 * What a round did, in words: rows of a phase's name and the parts of its sentence.
 * @param {Round} round
 * @param {boolean} sampled
 * @returns {[name: string, ...parts: (Node | string)[]][]}
 */
function phasesOf(round, sampled) {
  const { drafted, own, tree, times } = round;
  const took = (/** @type {number | undefined} */ seconds) =>
    seconds === undefined ? "in an unknown time" : `in ${inMs(seconds)}`;
  const accepted = acceptedOf(round);
  const kept = own ? [...accepted, own] : accepted;
  const deep = Math.max(0, ...drafted.map(({ position }) => position));
  const draft = !drafted.length
    ? ["Nothing was drafted."]
    : tree
      ? [`A tree of ${drafted.length} tokens, ${deep} deep, ${took(times.draft)}.`]
      : [`${count(drafted.length, "token")} ${took(times.draft)}: `, quoted(drafted)];
  const verify = drafted.length
    ? `The model checked ${drafted.length === 1 ? "it" : `all ${drafted.length}`} ${took(times.verify)}.`
    : `A plain pass of the model ${took(times.verify)}.`;
  return [
    ["Draft", ...draft],
    ["Verify", verify],
    ["Decision", ...decision(round, sampled)],
    ["Kept", `${count(kept.length, "token")}: `, quoted(kept)],
  ];
}

/**
 * @param {Round} round
 * @param {boolean} sampled
 * @returns {(Node | string)[]}
 */
function decision(round, sampled) {
  const { drafted, own, tree } = round;
  const accepted = acceptedOf(round);
  if (!drafted.length) return ["The model chose ", quoted(own ? [own] : []), "."];
  const draws = drafted.filter(isDecided).map(drawnIn);
  if (draws.length)
    return [...draws, ...outcome(own), ...(round.otherRule === undefined ? [] : [` ${otherRule(round)}`])];
  const share = tree
    ? `${count(accepted.length, "token")} accepted`
    : `${accepted.length} of ${drafted.length} accepted`;
  if (!own) return [`${share}; the last one ends the text.`];
  if (own.kind === "bonus")
    return [
      `${share}, to the end of ${tree ? "a branch" : "the draft"}. The same pass gives one more: `,
      quoted([own]),
      ".",
    ];
  const last = drafted.findLastIndex(({ kind }) => kind === "accepted");
  const refused = drafted.filter((token, i) => token.kind === "rejected" && (token.parent ?? i - 1) === last);
  const chances = (/** @type {Token} */ { p, q }) => ` (p ${probability(p)}, q ${probability(q)})`;
  const rule = sampled && !tree ? ", kept with probability p ÷ q where p is below q" : "";
  const first = refused.slice(0, 3).flatMap((token, i) => [i ? ", " : "", quoted([token]), chances(token)]);
  const more = refused.length > 3 ? ` and ${refused.length - 3} more` : "";
  return [
    `${share}. Rejected: `,
    ...first,
    more,
    rule,
    sampled ? ". Sampled in its place: " : ". The model's choice instead: ",
    quoted([own]),
    ` (p ${probability(own.p)}).`,
  ];
}

/**
 * Speculative sampling: the number that decided a token.
 * @param {Decided} token
 */
const drawnIn = (token) => make("span", "drawn", quoted([token]), ` ${drawn(token)}`);

/**
 * What came of it.
 * @param {Token | undefined} own
 */
function outcome(own) {
  if (!own) return ["The last one ends the text."];
  const how = own.kind === "bonus" ? "All accepted: the same pass gives one more: " : "Sampled in its place: ";
  return [how, quoted([own]), ` (p ${probability(own.p)}).`];
}

/** @param {Token[]} tokens */
function quoted(tokens) {
  const text = tokens
    .map((token) => token.text)
    .join("")
    .replace(/\n/g, "↵");
  const node = make("bdi", "quoted", text.length > 80 ? `${text.slice(0, 79)}…` : text || "no visible text");
  return node;
}
