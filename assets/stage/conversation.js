// The conversation that is answered, above the lanes; and under a finished run the box for its next message.

import { make } from "./core.js";

/** @import { Message, Press, StageValue } from "../types.d.ts" */

export function conversationPart() {
  const list = make("ol");
  const node = make("section", "conversation", list);
  node.setAttribute("aria-label", "Conversation");
  list.tabIndex = 0; // it may have to be scrolled
  let drawn = "";

  /** @param {Message[]} messages */
  function show(messages) {
    const text = JSON.stringify(messages);
    if (text === drawn) return;
    drawn = text;
    node.hidden = !messages.length;
    list.replaceChildren(...messages.map(messageOf));
    list.scrollTop = list.scrollHeight; // the message that is answered
  }
  return { node, show };
}

/** @param {Message} message */
function messageOf({ role, text }) {
  const said = make("span", "", text);
  said.dir = "auto";
  return make("li", role, make("b", "", role), said);
}

/**
 * The box for the next message. What was typed stays until the conversation has it.
 * @param {Press | null} press
 */
export function nextPart(press) {
  const box = make("textarea");
  const button = make("button", "", "Add a turn");
  const node = make("form", "next", box, button);
  Object.assign(box, { rows: 1, placeholder: "Next message" });
  box.setAttribute("aria-label", "Next message");
  button.title = "Both lanes go on from the standard lane's answer; Ctrl+Enter";
  let sent = "";

  node.addEventListener("submit", (event) => {
    event.preventDefault();
    sent = box.value;
    if (sent.trim()) press?.("submit", { message: sent });
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) node.requestSubmit();
  });

  /** @param {StageValue} value */
  function show({ goes_on, conversation, status }) {
    node.hidden = !press || !goes_on;
    if (node.hidden || !sent || status.kind === "error") return;
    if (conversation.at(-1)?.text !== sent) return; // what was there before, drawn once more
    if (box.value === sent) box.value = "";
    sent = "";
  }
  return { node, show };
}
