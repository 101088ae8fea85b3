// A recorded round of a drafter, as a figure: what it guessed, what was kept or struck, and the free token.

import { make } from "./core.js";
import { draftPicture } from "./tree.js";
import { guessed } from "./words.js";

/** @import { Component, Pictured } from "../types.d.ts" */

/** @param {Component<Pictured | Record<string, never>>} component */
export function pictured({ element, props, watch }) {
  const figure = element.querySelector("figure");

  function show(unfolded = false) {
    const { title, after, round } = props.value;
    figure?.replaceChildren();
    if (!round) return;
    const before = make("p", "after", make("span", "", "… "), make("bdi", "", after), make("span", "", " ▸"));
    const legend = make("small", "", " Blue was kept, struck was rejected, ringed is the model's own token.");
    figure?.append(
      make("figcaption", "", make("b", "", `${title}: ${guessed(round)}.`), legend),
      before,
      draftPicture(round, unfolded, () => show(true)),
    );
  }

  watch("value", () => show());
  show();
}
