/** This browser's key to its own history on a server of many: random, kept in the browser, never part of an address. */
export function keyOfBrowser() {
  const name = "playground-history";
  try {
    const key = localStorage.getItem(name) ?? hex(crypto.getRandomValues(new Uint8Array(32)));
    localStorage.setItem(name, key);
    return key;
  } catch {
    return ""; // storage is switched off
  }
}

/** @param {Uint8Array} bytes */
export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
