// What has to run in the head of the page, before Gradio's own scripts.

export function head() {
  refuseCounting();
  showFormed();
}

const counts = /^\(\)\s*=>\s*\{\w+\(\w+,\s*\(performance\.now\(\)\s*-/;
const loader = "[data-testid=status-tracker]:not(.hide)";

/** Gradio's loader goes on counting its seconds, a frame at a time, after it has left the page, and so takes time of the
 * cores that may decode. Where nothing on the page shows seconds, their next frame is refused. Gradio's scripts keep the
 * function that they find. */
function refuseCounting() {
  const ask = requestAnimationFrame.bind(globalThis);
  globalThis.requestAnimationFrame = (act) =>
    counts.test(String(act)) && !document.querySelector(loader) ? 0 : ask(act);
}

const EVERY_MS = 100;
const STILL = 5; // looks without a change, after which the page is shown
const LONGEST = 150; // looks after which it is shown in any case

/** Gradio adds the parts of a page one by one, and each pushes the others about. head.css hides them until the stage is
 * drawn and nothing moves. */
function showFormed() {
  let looks = 0;
  let still = 0;
  let before = "";
  const timer = setInterval(() => {
    const now = layout();
    still = now && now === before ? still + 1 : 0;
    before = now;
    looks += 1;
    if (still < STILL && looks < LONGEST) return;
    clearInterval(timer);
    document.documentElement.classList.add("formed");
    const title = document.querySelector("meta[property='og:title']");
    document.title = title?.getAttribute("content") ?? document.title; // Gradio has one for all rooms
  }, EVERY_MS);
}

/** Where the parts are; "" while there are not all. */
function layout() {
  const main = document.querySelector("main");
  if (!main || !document.querySelector(".stage:not(.awaited) > .head, .intro, #document")) return "";
  return [...main.querySelectorAll(".block, button")]
    .map((part) => Math.round(part.getBoundingClientRect().top))
    .join();
}
