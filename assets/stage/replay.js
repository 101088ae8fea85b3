// Replays the lanes on one clock.

function replayPart() {
  const node = make("section", "replay");
  return { node, show(value, rounds) {} };
}
