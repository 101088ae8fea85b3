// The page's address for the values of the controls: what differs from the defaults, and always the models.

const LONGEST = 6000; // characters; proxies refuse much longer addresses

function parametersOf(values, { usual, pairs }) {
  const names = Object.keys(usual);
  const asked = Object.fromEntries(names.map((name, i) => [name, values[i]]));
  const known = { ...usual, ...pairs[asked.pair] };
  if (asked.pair !== "own") asked.target = asked.assistant = "";
  const differs = (name) => asked[name] !== null && String(asked[name]) !== String(known[name] ?? "");
  const wanted = names.filter((name) => name === "pair" || differs(name));
  const whole = new URLSearchParams(wanted.map((name) => [name, String(asked[name])]));
  if (whole.toString().length <= LONGEST) return { names, parameters: whole, short: false };
  whole.delete("prompt");
  whole.delete("system");
  return { names, parameters: whole, short: true };
}

function showAddress(values, known) {
  const { names, parameters } = parametersOf(values, known);
  const url = new URL(location.href);
  for (const name of [...names, "id"]) url.searchParams.delete(name); // id: a run of the history that was shown
  for (const [name, value] of parameters) url.searchParams.set(name, value);
  history.replaceState(history.state, "", url);
}

function copyAddress(values, known) {
  const { parameters, short } = parametersOf(values, known);
  const url = `${location.origin}${location.pathname}?${parameters}`;
  document.dispatchEvent(new CustomEvent("copy-link", { detail: { url, short } }));
}
