// Values that this tab of the browser carries from room to room.

const NAME = "playground-";

/**
 * Stores a value for the other rooms.
 * @param {string} name
 * @param {unknown} value
 */
export function remember(name, value) {
  try {
    sessionStorage.setItem(NAME + name, JSON.stringify(value));
  } catch {
    // storage is switched off: rooms begin with their defaults
  }
}

/**
 * Returns what `remember` stored under a name, or the given value.
 * @template T
 * @param {string} name
 * @param {T} otherwise
 * @returns {T}
 */
export function remembered(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(NAME + name) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** The settings of Try, for the controls of another room. */
export const settings = () => remembered("settings", {});

let shown = ""; // what the controls asked for when the experiment that is shown was started

/**
 * Notes that the experiment that is shown was started with these values of the controls.
 * @param {unknown[]} values
 */
export function ran(values) {
  shown = JSON.stringify(values);
  changed(values);
}

/**
 * Marks the result as old if the controls have other values than those it was started with.
 * @param {unknown[]} values
 */
export function changed(values) {
  const old = shown !== "" && JSON.stringify(values) !== shown;
  document.getElementById("experiment")?.classList.toggle("old", old);
}

/**
 * Puts the experiment that was just started into the address, so that it can be opened again.
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
      if (link?.getAttribute("href") === "./") link.setAttribute("href", `./${remembered("run", "")}`);
    },
    true,
  );
}
