// The stage, drawn from one value (see ui/screen.py): status, headline, lanes, timeline and replay.
// `element`, `props` and `watch` come from Gradio's HTML component, or from the shared HTML file.

const sentence = make("span");
const progress = make("progress");
const offer = make("button", "offer");
const status = make("div", "status", sentence, progress, offer);
const banner = make("p", "banner");
const verdict = verdictPart();
const drafters = draftersPart();
const lanes = lanesPart();
const timeline = timelinePart();
const replay = replayPart();
status.id = "status";
offer.type = "button";
offer.addEventListener("click", () => press("download"));
banner.id = "banner";
element.querySelector(".stage").append(status, banner, drafters.node, verdict.node, lanes.node, replay.node, timeline.node);

function show() {
  const value = unpacked(props.value);
  const { text, kind, fraction } = value.status;
  status.className = "status " + kind;
  status.setAttribute("role", kind === "error" ? "alert" : "status");
  if (sentence.textContent !== text) sentence.textContent = text;
  status.hidden = !text;
  offer.textContent = value.offer;
  offer.hidden = !value.offer || !press;
  progress.hidden = kind !== "busy";
  if (fraction === null) progress.removeAttribute("value");
  else progress.value = fraction;
  if (banner.textContent !== value.banner) banner.textContent = value.banner;
  banner.hidden = !value.banner;
  plainPass.seconds = value.lanes[0].timing?.pass_s ?? null;
  drafters.show(value.drafters);
  verdict.show(value.verdict);
  const rounds = lanes.show(value.lanes, value.difference);
  timeline.show(value.lanes, rounds);
  replay.show(value, rounds);
}

watch("value", show);
show();
