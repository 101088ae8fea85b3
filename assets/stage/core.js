// What the parts of the stage share. The scripts of this folder are joined in the order of ui/panels.py and run in one
// scope, on the page as well as in the shared HTML file. Text enters through textContent alone, never as markup.

function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Selections and time, so that every part follows every other:
//   "select" {lane, round}   a round was chosen (round counts from 1; 0 chooses none)
//   "hover"  {lane, token}   the pointer is over the token at this position of the output, from 0; -1 for none
//   "seek"   {time}          the replay shows this second; Infinity shows everything
const bus = new EventTarget();
const tell = (name, detail) => bus.dispatchEvent(new CustomEvent(name, { detail }));
const hear = (name, act) => bus.addEventListener(name, (event) => act(event.detail));

// Sends an event to the page's handlers; the shared HTML file has none.
const press = typeof trigger === "undefined" ? null : trigger;

// The stage's value, which ui/panels.py packed.
function unpacked({ rest, logs }) {
  const value = JSON.parse(rest);
  value.lanes.forEach((lane, i) => (lane.log = logs[i]));
  return value;
}

const calm = matchMedia("(prefers-reduced-motion: reduce)");

// A lane's log, read once: rounds as objects, appended to as the log grows. A round is {drafted, own, tree, times}, with
// times {start, draft, verify, end} in seconds (draft and verify are missing where they are unknown).
class Rounds {
  constructor() {
    this.all = [];
    this.read = "";
  }

  // Returns the rounds that are new; all of them, with `restarted` set, if the log is another one.
  update(log) {
    this.restarted = !log.startsWith(this.read);
    if (this.restarted) {
      this.all = [];
      this.read = "";
    }
    const fresh = log.slice(this.read.length).split("\n").filter(Boolean).map((line) => JSON.parse(line));
    this.all.push(...fresh);
    this.read = log;
    return fresh;
  }

  // How many rounds had ended at a time.
  until(time) {
    let low = 0, high = this.all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.all[middle].times.end <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
