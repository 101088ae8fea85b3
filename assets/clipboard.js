/**
 * Puts a text into the clipboard. Returns whether it is there now.
 * @param {string} text
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard without https, except on this machine: the older way.
    const box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    return copied;
  }
}

export const REFUSED = "The browser does not let the page copy.";
