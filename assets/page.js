// The page by keyboard, beyond what Gradio does, and what its charts say to a screen reader.
() => {
  const press = (target, key) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));

  // Ctrl+Enter (Cmd+Enter) in the prompt presses Run.
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.closest("#prompt")) return;
      event.preventDefault();
      event.stopPropagation();
      event.target.dispatchEvent(new Event("change", { bubbles: true }));
      document.getElementById("run").click();
    },
    true,
  );

  // Whether the text is in the clipboard now.
  globalThis.copyText = async (text) => {
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
  };

  // A button in a section copies the section's block.
  document.addEventListener("click", async ({ target }) => {
    const button = target.closest("button.copy");
    if (!button) return;
    const section = button.closest("section");
    const said = section.querySelector(".said");
    const copied = await copyText(section.querySelector("pre").textContent);
    said.textContent = copied ? "Copied." : "The browser does not let the page copy.";
    setTimeout(() => (said.textContent = ""), 4000);
  });

  // Gradio leaves the list of a dropdown open when Tab leaves the dropdown.
  document.addEventListener("focusout", ({ target }) => {
    if (target.role !== "combobox") return;
    setTimeout(() => {
      if (target !== document.activeElement && target.ariaExpanded === "true") press(target, "Escape");
    }, 60);
  });

  // A button that is switched off or taken away while it has the focus hands it on: Run to Stop, and back.
  const next = { run: "stop", stop: "run", clear: "run" };
  let focused = null;
  let heir = null;
  document.addEventListener("focusin", ({ target }) => {
    focused = target;
    heir = null;
  });
  const handOn = () => {
    if (document.activeElement !== document.body && document.activeElement !== focused) return;
    if (focused?.disabled) heir = document.getElementById(next[focused.id]);
    if (heir && !heir.disabled) heir.focus({ preventScroll: true });
  };
  const buttons = new MutationObserver(handOn);
  for (const id of Object.keys(next)) {
    const button = document.getElementById(id); // of Compare; the other tabs have their own
    if (button) buttons.observe(button, { attributes: true, attributeFilter: ["disabled"] });
  }
  document.addEventListener("click", ({ target }) => {
    if (!target.closest("#own-settings")) return;
    setTimeout(() => {
      if (!document.contains(focused)) document.getElementById("run").focus({ preventScroll: true });
    }, 1000);
  });

  // Each chart is a picture with a text, and its button can be reached. Those under #why come when it is unfolded.
  const describe = (charts) => {
    for (const chart of charts.querySelectorAll(".js-plotly-plot")) {
      const [picture, ...layers] = chart.querySelectorAll(".main-svg");
      picture?.setAttribute("role", "img");
      picture?.setAttribute("aria-label", chart.layout.meta);
      layers.forEach((layer) => layer.setAttribute("aria-hidden", "true"));
      for (const button of chart.querySelectorAll(".modebar-btn")) {
        Object.assign(button, { tabIndex: 0, role: "button", ariaLabel: button.dataset.title });
      }
    }
  };
  for (const charts of document.querySelectorAll("#charts, .charts, #why")) {
    new MutationObserver(() => describe(charts)).observe(charts, { childList: true, subtree: true });
    charts.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      const button = event.target.closest(".modebar-btn");
      if (!button) return;
      event.preventDefault();
      button.click();
    });
  }
};
