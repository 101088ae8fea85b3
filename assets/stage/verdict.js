// The headline: speed-up = tokens per pass ÷ cost of a round, with a bar for each side, and whether to trust it; a
// button that repeats the run, after which the headline is the median, with the range.

function verdictPart() {
  const large = make("output", "figure");
  const terms = make("div", "terms");
  const bars = make("div", "bars");
  const badges = make("ul", "badges");
  const facts = make("div", "facts");
  const again = make("button", "again", "Repeat 3x, interleaved");
  again.type = "button";
  again.title = "Runs the lanes three times more, in turn, and shows the median and the range";
  again.addEventListener("click", () => press("retry"));
  const doubt = make("div", "doubt", badges, again);
  const node = make("section", "verdict", make("div", "equation", large, terms), bars, doubt, facts);
  node.id = "verdict";
  node.setAttribute("aria-label", "Result");
  let drawn = "";

  function show(verdict) {
    const text = JSON.stringify(verdict);
    if (text === drawn) return;
    drawn = text;
    const { figure, meaning, terms: told, repeats, repeatable, badges: doubts, sentences, trust } = verdict;
    again.hidden = !repeatable || !press;
    doubt.hidden = again.hidden && !doubts.length;
    large.textContent = figure;
    node.className = `verdict ${trust}`;
    terms.replaceChildren(...(repeats ? [range(repeats)] : []), ...(told ? equation(told, repeats) : [make("span", "meaning", meaning)]));
    bars.replaceChildren(...(told ? [bar("gain", "tokens per pass", told.tokens_per_pass, [["gain", told.tokens_per_pass]], told), bar("cost", "cost of a round", told.cost, parts(told), told)] : []));
    badges.replaceChildren(...doubts.map((why) => make("li", "", why)));
    facts.replaceChildren(...sentences.map((fact) => make("p", "", fact)));
  }

  return { node, show };
}

const number = (value) => value.toFixed(2);
const parts = ({ verify, draft, other, cost }) =>
  verify === null ? [["verify", cost]] : [["verify", verify], ["draft", draft], ["other", Math.max(0, other)]];

const range = ({ low, high, runs }) => make("div", "range", `median (${number(low)} to ${number(high)}, ${runs} runs)`);

function equation(told, repeats) {
  const split = told.verify === null ? "" : ` (verify ${number(told.verify)} + draft ${number(told.draft)}${told.other >= 0.005 ? ` + other ${number(told.other)}` : ""}, in plain passes)`;
  return [
    make("span", "equals", repeats ? `first run: ${number(told.speedup)} = ` : "= "),
    make("b", "gain", number(told.tokens_per_pass)),
    make("span", "", " tokens per pass ÷ "),
    make("b", "cost", number(told.cost)),
    make("span", "", ` cost of a round${split}`),
  ];
}

function bar(kind, label, value, pieces, told) {
  const scale = 100 / Math.max(told.tokens_per_pass, told.cost);
  const track = make("div", "track", ...pieces.map(([name, size]) => {
    const piece = make("i", name);
    piece.style.width = `${size * scale}%`;
    piece.title = `${name} ${number(size)}`;
    return piece;
  }));
  const row = make("div", `bar ${kind}`, make("span", "", label), track, make("span", "value", number(value)));
  return row;
}
