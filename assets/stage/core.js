// What the parts of the stage share: elements and signals. Text enters through textContent alone, never as markup.

/** @import { Signals } from "../types.d.ts" */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {string} [className]
 * @param {(Node | string)[]} children
 */
export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/**
 * @param {string} className
 * @param {string} text
 * @param {(event: MouseEvent) => void} act when it is pressed
 * @param {Partial<HTMLButtonElement>} [more] further properties
 */
export function button(className, text, act, more) {
  const node = Object.assign(make("button", className, text), { type: "button", ...more });
  node.addEventListener("click", act);
  return node;
}

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {(Node | string)[]} children
 */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  put(node, attributes);
  node.append(...children);
  return node;
}

/**
 * Sets attributes.
 * @param {Element} node
 * @param {Record<string, string | number>} attributes
 */
export function put(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
}

/**
 * Sets the text, if it is another: to set it again costs a layout.
 * @param {Element} node
 * @param {string} text
 */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * The element of an event, or the nearest around it, that a selector matches.
 * @param {Event} event
 * @param {string} selector
 */
export function within(event, selector) {
  return /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest(selector));
}

const bus = new EventTarget();

/**
 * @template {keyof Signals} K
 * @param {K} name
 * @param {Signals[K]} detail
 */
export function tell(name, detail) {
  bus.dispatchEvent(new CustomEvent(name, { detail }));
}

/**
 * @template {keyof Signals} K
 * @param {K} name
 * @param {(detail: Signals[K]) => void} act
 */
export function hear(name, act) {
  bus.addEventListener(name, (event) => act(/** @type {CustomEvent<Signals[K]>} */ (event).detail));
}

/** The element of a page that has it. */
export const part = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (document.querySelector(selector));
