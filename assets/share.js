// The Share menu. `props.value` is the comparison as Markdown, "" without one. The picture is drawn by stage/card.js.

const opens = element.querySelector(".opens");
const menu = element.querySelector("#share-menu");
const said = element.querySelector(".said");
let fades = 0;

function say(sentence) {
  said.textContent = sentence;
  clearTimeout(fades);
  fades = setTimeout(() => (said.textContent = ""), 4000);
}

async function copy(text, sentence) {
  say((await copyText(text)) ? sentence : "The browser does not let the page copy."); // of page.js
}

const acts = {
  link: () => trigger("copy"), // address.js answers with "copy-link"
  markdown: () => copy(props.value, "Markdown copied."),
  picture: () => document.dispatchEvent(new Event("save-picture")),
  file: () => document.getElementById("save-html").click(),
};

document.addEventListener("copy-link", ({ detail: { url, short } }) =>
  copy(url, short ? "Link copied without the prompt, which is too long for an address." : "Link copied."),
);
menu.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  menu.hidePopover();
  acts[button.name]();
});
menu.addEventListener("beforetoggle", () => {
  const { bottom, right } = opens.getBoundingClientRect();
  menu.style.top = `${scrollY + bottom + 4}px`;
  menu.style.right = `${Math.max(8, document.documentElement.clientWidth - right)}px`;
});

function show() {
  for (const button of menu.querySelectorAll("button:not([name=link])")) button.disabled = !props.value;
}
watch("value", show);
show();
