// The line of figures over a lane. A figure's name is a button that says what the figure means: to the pointer, to a tap
// and to the keyboard. One tab stop a line; the arrow keys go from figure to figure.

const meaning = only("figure-tip", "tooltip");

function figuresPart() {
  const node = make("dl", "figures");
  let cells = [];
  let drawn = "";

  // Values change in place: a run must not take the focus from a name.
  function show(values) {
    const names = JSON.stringify(values.map(({ label, meaning }) => [label, meaning]));
    if (names !== drawn) {
      drawn = names;
      cells = values.map(figure);
      node.replaceChildren(...cells.map(({ cell }) => cell));
      if (cells.length) cells[0].name.tabIndex = 0;
    }
    values.forEach(({ value, unit }, index) => {
      const { number, small } = cells[index];
      if (number.data !== value) number.data = value;
      if (small.textContent !== unit) small.textContent = unit;
    });
  }

  function figure({ label, meaning }) {
    const name = make("button", "", label);
    name.type = "button";
    name.tabIndex = -1;
    name.meaning = meaning;
    const number = document.createTextNode("");
    const small = make("small");
    return { cell: make("div", "", make("dt", "", name), make("dd", "", number, small)), name, number, small };
  }

  const named = (event) => event.target.closest("div")?.querySelector("button");
  for (const event of ["pointerover", "focusin", "click"]) {
    node.addEventListener(event, (it) => named(it) && showMeaning(named(it)));
  }
  const hide = () => (meaning.hidden = true);
  node.addEventListener("pointerleave", hide);
  node.addEventListener("focusout", hide);
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = cells.findIndex(({ name }) => name === event.target);
    const next = cells[(at + step + cells.length) % cells.length].name;
    cells.forEach(({ name }) => (name.tabIndex = name === next ? 0 : -1));
    next.focus();
  });
  return { node, show };
}

function showMeaning(name) {
  meaning.textContent = name.meaning;
  meaning.hidden = false;
  name.setAttribute("aria-describedby", meaning.id);
  putBeside(meaning, name.closest("div"));
}
