// The saved HTML file (shared.html): the stage without Gradio, and buttons that save.

import { part } from "./stage/core.js";
import { stage } from "./stage/stage.js";

export function shared() {
  const props = { value: JSON.parse(part("#value").textContent) };
  stage({ element: part("#stage"), props, watch: () => {}, trigger: null });
  part("#save [name=picture]").addEventListener("click", () => document.dispatchEvent(new Event("save-picture")));
  part("#save [name=trace]").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([part("#trace").textContent], { type: "application/json" }));
    link.download = "trace.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
