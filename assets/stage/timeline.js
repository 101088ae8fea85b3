// The rounds over true time: the baseline's passes above, the other lanes' rounds below. Drawn by the timeline helper.

function timelinePart() {
  const node = make("section", "timeline");
  return { node, show(lanes, rounds) {} };
}
