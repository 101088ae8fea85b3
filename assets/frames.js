// Gradio's loader goes on counting its seconds, a frame at a time, after it has left the page, and so takes time of the
// cores that may decode. Where nothing on the page shows seconds, their next frame is refused. It is to run before
// Gradio's own scripts, which keep the function that they find.

const counts = /^\(\)\s*=>\s*\{\w+\(\w+,\s*\(performance\.now\(\)\s*-/;
const shown = "[data-testid=status-tracker]:not(.hide)";

export function refuseCounting() {
  const ask = requestAnimationFrame.bind(globalThis);
  globalThis.requestAnimationFrame = (act) =>
    counts.test(String(act)) && !document.querySelector(shown) ? 0 : ask(act);
}
