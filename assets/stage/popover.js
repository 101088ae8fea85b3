// A round's draft, opened beside its tokens: one for the page. It follows the pointer (hover opens, leaving closes) until
// a click, a tap or Enter keeps it open; Escape, or pressing or focusing anything else, closes it.

const popover = only("round-popover", "dialog");
popover.tabIndex = 0; // it may have to be scrolled
const opened = { round: null, origin: null, kept: false };
let opening = 0, closing = 0; // timers

// Opens it for a round's element. `origin` is the token or caret that asked for it; `kept`: it stays open.
function openRound(round, origin, kept) {
  if (opened.round !== round) {
    closeRound();
    drawRound(round, false);
  }
  stopTimers();
  Object.assign(opened, { round, origin, kept });
  round.caret?.setAttribute("aria-expanded", "true");
  hideTip();
}

function drawRound(round, unfolded) {
  const { drafted } = round.log;
  const accepted = drafted.filter(({ kind }) => kind === "accepted").length;
  const title = `Round ${round.dataset.round}: ${accepted} of ${drafted.length} drafted tokens accepted`;
  popover.setAttribute("aria-label", title);
  popover.replaceChildren(
    make("p", "title", title),
    draftPicture(round.log, unfolded, () => {
      drawRound(round, true);
      opened.kept = true;
      popover.focus();
    }),
    ...draftSentences(round.log).map((sentence) => make("p", "", sentence)),
    make("p", "key", "Width of a link: q, the drafter's probability. Ringed: the model's own token."),
  );
  popover.hidden = false;
  putBeside(popover, round);
}

function closeRound() {
  stopTimers();
  if (!opened.round) return;
  opened.round.caret?.setAttribute("aria-expanded", "false");
  opened.round = null;
  popover.hidden = true;
}

function openSoon(caret) {
  stopTimers();
  opening = setTimeout(() => openRound(caret.parentNode, caret, opened.kept && opened.origin === caret), 120);
}

// Not at once: the pointer may be on its way from the caret to the popover.
function closeSoon() {
  clearTimeout(opening);
  if (opened.round && !opened.kept && !closing) closing = setTimeout(closeRound, 300);
}

function stopTimers() {
  clearTimeout(opening);
  clearTimeout(closing);
  closing = 0;
}

popover.addEventListener("pointerenter", stopTimers);
popover.addEventListener("pointerleave", closeSoon);
popover.addEventListener("keydown", (event) => {
  const last = [...popover.querySelectorAll("button")].at(-1) ?? popover;
  if (event.key === "Escape" || (event.key === "Tab" && !event.shiftKey && document.activeElement === last)) {
    opened.origin.focus(); // Tab then goes on from there
    closeRound();
  }
});
popover.addEventListener("focusout", (event) => {
  if (event.relatedTarget && !popover.contains(event.relatedTarget)) closeRound();
});
document.addEventListener("pointerdown", (event) => {
  if (opened.round && !popover.contains(event.target) && !event.target.closest?.(".caret")) closeRound();
});
// It goes along with its round, as long as the round is in view.
document.addEventListener(
  "scroll",
  ({ target }) => {
    if (!target.contains(opened.round)) return;
    const panel = opened.round.parentNode.getBoundingClientRect();
    const { top, bottom } = opened.round.getBoundingClientRect();
    const seen = bottom > Math.max(panel.top, 0) && top < Math.min(panel.bottom, innerHeight);
    if (seen) putBeside(popover, opened.round);
    else closeRound();
  },
  true,
);
