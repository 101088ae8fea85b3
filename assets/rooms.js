// What goes along from room to room, in this tab of the browser alone.

const NAME = "playground-";

/**
 * @param {string} name
 * @param {unknown} value
 */
export function keep(name, value) {
  try {
    sessionStorage.setItem(NAME + name, JSON.stringify(value));
  } catch {
    // storage is switched off: rooms begin with their defaults
  }
}

/**
 * What was kept, or what is given.
 * @template T
 * @param {string} name
 * @param {T} otherwise
 * @returns {T}
 */
export function kept(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(NAME + name) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** The settings of Try, for the controls of another room. */
export const settings = () => kept("settings", {});

let shown = ""; // what the controls asked for when the experiment that is shown was started

/**
 * The experiment that is shown was asked for by these values of the controls.
 * @param {unknown[]} values
 */
export function ran(values) {
  shown = JSON.stringify(values);
  changed(values);
}

/**
 * A control has changed: a result of other values is marked as old.
 * @param {unknown[]} values
 */
export function changed(values) {
  const old = shown !== "" && JSON.stringify(values) !== shown;
  document.getElementById("experiment")?.classList.toggle("old", old);
}

/**
 * The experiment was started, if it was not refused: the address comes to name it, so that it can be opened again.
 * @param {unknown[]} values
 */
export function showExperiment(values) {
  const started = /** @type {HTMLElement | null} */ (document.querySelector("#experiment [data-experiment]"));
  if (!started || document.querySelector("#refused")) return;
  const url = new URL(location.href);
  url.searchParams.set("id", started.dataset.experiment ?? "");
  history.replaceState(history.state, "", url);
  ran(values);
}

/** Links to Try lead back to the run that was shown there. */
export function leadBack() {
  document.addEventListener(
    "click",
    (event) => {
      const link = /** @type {Element} */ (event.target).closest("#rooms a");
      if (link?.getAttribute("href") === "./") link.setAttribute("href", `./${kept("run", "")}`);
    },
    true,
  );
}
