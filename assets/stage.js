// The stage: status line, both lanes and the figure between them, drawn from one value (see ui/screen.py).
// Text enters through textContent alone. What did not change is left alone.

function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function lane(label) {
  const title = make("h2");
  const chip = make("span", "chip");
  const figures = make("dl", "figures");
  const panel = make("div", "tokens");
  panel.setAttribute("role", "log");
  panel.setAttribute("aria-live", "off");
  panel.setAttribute("aria-label", label);
  const draw = tokenPanel(panel);
  const section = make("section", "lane", make("div", "lane-head", make("div", "title", title, chip), figures), panel);
  let drawnFigures = "";

  function show({ name, state, figures: values, log }) {
    title.textContent = name;
    chip.textContent = state;
    chip.className = "chip " + state;
    const text = JSON.stringify(values);
    if (text !== drawnFigures) {
      drawnFigures = text;
      figures.replaceChildren(...values.map(figure));
    }
    draw(log);
  }
  return { section, show };
}

function figure({ label, value, unit, meaning }) {
  const cell = make("div", "", make("dt", "", label), make("dd", "", value, make("small", "", unit)));
  cell.title = meaning;
  return cell;
}

const sentence = make("span");
const bar = make("progress");
const status = make("div", "status", sentence, bar);
const large = make("output", "figure");
const meaning = make("p", "meaning");
const facts = make("div", "facts");
const lanes = [lane("Standard, output"), lane("Assisted, output")];
const verdict = make("section", "verdict", large, meaning, facts);
status.id = "status";
verdict.id = "verdict";
element.querySelector(".stage").append(status, make("div", "lanes", lanes[0].section, verdict, lanes[1].section));

function show() {
  const value = props.value;
  const { text, kind, fraction } = value.status;
  status.className = "status " + kind;
  status.setAttribute("role", kind === "error" ? "alert" : "status");
  if (sentence.textContent !== text) sentence.textContent = text;
  bar.hidden = kind !== "busy";
  if (fraction === null) bar.removeAttribute("value");
  else bar.value = fraction;
  value.lanes.forEach((values, i) => lanes[i].show(values));
  if (large.textContent !== value.verdict.figure) large.textContent = value.verdict.figure;
  meaning.textContent = value.verdict.meaning;
  facts.replaceChildren(...value.verdict.sentences.map((fact) => make("p", "", fact)));
}

watch("value", show);
show();
