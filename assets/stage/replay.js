// Replays the lanes on one clock, in the browser alone: play, a scrubber, a pace, and the round that ends then in words. A
// replay that begins by itself shows the first rounds slowly. At rest everything is shown (time is Infinity).

import { button, hear, make, say, tell } from "./core.js";
import { GUESSED, JUDGED } from "./tokens.js";
import { count, guessed } from "./words.js";

/** @import { Rounds } from "./log.js" */
/** @import { Round, StageValue } from "../types.d.ts" */

const PACES = [0.25, 0.5, 1, 2, 4];
const FRAME_MS = 40; // between two updates while playing: the eye needs no more, and another run may need the cores
const ONCE_S = 5; // of the replay that follows a run, at most
const HOLD_MS = 4000; // what a loop shows at its end
const SLOW = 4; // the first rounds take so many times their time, and at least SLOW_S
const SLOW_ROUNDS = 3;
const SLOW_S = 1.8;
const KEPT_MS = 1100; // for which the outcome of a slow round stands still

export function replayPart() {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const play = button("play", "", () => (frame ? pause() : start("")));
  const scrubber = make("input");
  Object.assign(scrubber, { type: "range", step: "any" });
  scrubber.setAttribute("aria-label", "Time of the replay");
  const pace = make(
    "select",
    "",
    ...PACES.map((times) => new Option(`${times}×`, String(times), times === 1, times === 1)),
  );
  pace.setAttribute("aria-label", "Pace, in times the recorded one");
  const caption = make("output", "caption");
  caption.setAttribute("aria-live", "off"); // the panel of the round speaks
  const node = make("section", "replay", play, pace, scrubber, caption);
  node.setAttribute("aria-label", "Replay");
  node.hidden = true;

  /** @type {Rounds[]} */
  let rounds = [];
  /** @type {Round[][]} */
  let known = [];
  let total = 0;
  let time = Infinity;
  let frame = 0;
  let atRest = ""; // what the caption says
  /** @type {StageValue["replay"]} */
  let alone = ""; // how it goes on, if it began by itself
  let begun = false;
  let chosen = { lane: 1, round: 0 };
  /** @type {Round[]} */
  let slow = []; // rounds that are played slowly

  // --- time ---

  /** @param {number} next */
  function seek(next) {
    time = next;
    const round = alone && slow.find(({ times }) => next > times.start && next < times.end);
    const share = round ? Math.max(0.01, (next - round.times.start) / (round.times.end - round.times.start)) : 0;
    tell("seek", { time, share });
    const shown = Math.min(time, total);
    scrubber.value = String(shown);
    scrubber.setAttribute("aria-valuetext", `${shown.toFixed(2)} of ${total.toFixed(2)} seconds`);
    say(caption, round ? slowly(round, share) : captionOf());
  }

  function captionOf() {
    if (time >= total) return atRest;
    const done = rounds[chosen.lane].until(time);
    const last = rounds[chosen.lane].all[done - 1];
    if (!last || (alone && !slow.includes(last))) return `${Math.min(time, total).toFixed(2)} of ${total.toFixed(2)} s`;
    return `Round ${done}: ${guessed(last)}`;
  }

  /** @param {Round} round @param {number} share */
  function slowly(round, share) {
    const { all } = rounds[rounds.length - 1];
    const number = `Slow, round ${all.indexOf(round) + 1}`;
    const n = round.drafted.length;
    if (share < GUESSED) return `${number}: ${count(n, "guess", "guesses")} …`;
    return `${number}: ${share < JUDGED ? `${n === 1 ? "it is" : `all ${n}`} checked at once …` : guessed(round)}`;
  }

  /** @param {StageValue["replay"]} itself */
  function start(itself) {
    if (time >= total) seek(0);
    alone = itself;
    const faster = alone === "once" ? Math.max(1, total / ONCE_S) : 1;
    let last = performance.now();
    let still = 0; // until then it shows what it shows
    const tick = (/** @type {number} */ now) => {
      frame = requestAnimationFrame(tick);
      if (now - last < FRAME_MS) return;
      if (!node.checkVisibility({ visibilityProperty: true })) still = now; // the page is not formed yet (head.js)
      if (now < still + 1) return;
      const passed = (now - Math.max(last, still)) / 1000;
      last = now;
      if (time >= total) {
        if (alone !== "loop") return rest();
        return seek(0);
      }
      const round = alone && slow.find(({ times }) => time >= times.start && time < times.end);
      if (round) {
        const { start: from, end } = round.times;
        const rate = (end - from) / Math.max(SLOW_S, SLOW * (end - from));
        seek(Math.min(end, time + passed * rate));
        if (time >= end) still = now + KEPT_MS;
        return;
      }
      const next = time + passed * Number(pace.value) * faster;
      seek(Math.min(next, total, alone ? (slow.find(({ times }) => times.start > time)?.times.start ?? total) : total));
      if (time >= total) still = now + (alone === "loop" ? HOLD_MS : 0);
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
    play.textContent = frame ? "❚❚ Pause" : "▶ Play";
  }

  // Whatever the user does ends a replay that began by itself.
  for (const name of ["pointerdown", "keydown", "wheel", "touchmove"]) {
    const end = (/** @type {Event} */ { target }) => {
      if (!alone) return;
      if (target instanceof Node && node.contains(target)) {
        alone = "";
        seek(time);
      } else rest();
    };
    addEventListener(name, end, { capture: true, passive: true });
  }

  /** @param {number} by rounds of the lane that was chosen last */
  function step(by) {
    pause();
    const all = rounds[chosen.lane].all;
    const now = time === Infinity && chosen.round ? chosen.round : rounds[chosen.lane].until(time);
    const round = Math.min(Math.max(now + by, 0), all.length);
    seek(round ? all[round - 1].times.end : 0);
    tell("select", { lane: chosen.lane, round });
  }

  hear("select", (which) => (chosen = which));
  hear("view", ({ from, to, left }) => {
    Object.assign(scrubber, { min: String(from), max: String(to) }); // its thumb lies under the timeline's cursor
    node.style.setProperty("--left", `${left}px`);
    scrubber.value = String(Math.min(time, total));
  });
  scrubber.addEventListener("input", () => {
    pause();
    seek(Number(scrubber.value) >= total ? Infinity : Number(scrubber.value));
  });
  scrubber.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    step(by);
  });

  // --- the value ---

  /** @param {StageValue} value @param {Rounds[]} logs */
  function show(value, logs) {
    rounds = logs;
    const running = value.lanes.some(({ state }) => state === "running" || state === "waiting");
    const another = logs.length !== known.length || logs.some(({ all }, index) => all !== known[index]);
    known = logs.map(({ all }) => all);
    const [same = "", passes = same] = value.verdict.sentences;
    atRest = passes;
    if (running || another) rest();
    if (another) {
      chosen = { lane: logs.length - 1 && 1, round: 0 };
      begun = false;
    }
    for (const control of [play, scrubber, pace]) control.disabled = running;
    node.hidden = !running && !logs.some(({ all }) => all.length);
    if (running) {
      scrubber.value = scrubber.max;
      say(caption, "");
    }
    if (running || node.hidden) return;
    total = Math.max(...logs.map(({ all }) => all.at(-1)?.times.end ?? 0));
    slow = (logs.at(-1)?.all.slice(1) ?? []).filter(({ drafted }) => drafted.length).slice(0, SLOW_ROUNDS);
    seek(time);
    if (value.replay && !begun && !calm.matches) start(value.replay);
    begun ||= value.replay !== ""; // a run may measure on once the lanes that are shown have ended
  }
  label();
  return { node, show };
}
