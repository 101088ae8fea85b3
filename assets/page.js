// Ctrl+Enter (Cmd+Enter) in the prompt presses Run.
() => {
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
};
