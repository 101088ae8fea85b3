// The legend's switches: classes on the body, so that both panels follow and a new run keeps them.

for (const box of element.querySelectorAll("input[type=checkbox]")) {
  box.checked = document.body.classList.contains(box.name);
  box.addEventListener("change", () => {
    document.body.classList.toggle(box.name, box.checked);
    document.dispatchEvent(new Event(box.name));
  });
}
