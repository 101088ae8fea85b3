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

/** Links to Try lead back to the run that was shown there. */
export function leadBack() {
  document.addEventListener("click", (event) => {
    const link = /** @type {Element} */ (event.target).closest("#rooms a");
    if (link?.getAttribute("href") === "./") link.setAttribute("href", `./${kept("run", "")}`);
  }, true);
}
