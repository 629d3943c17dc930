"use strict";

// Goes on with a long run by itself, and keeps the overview fresh. Everything works without.
document.addEventListener("DOMContentLoaded", () => {
  const run = document.querySelector("form[data-pgembed-continue]");
  if (run) {
    setTimeout(() => run.requestSubmit(), Number(run.dataset.pgembedContinue) * 1000);
  }

  const live = document.querySelector("[data-pgembed-refresh]");
  if (!live) {
    return;
  }
  const seconds = Number(live.dataset.pgembedRefresh);

  async function refresh() {
    const focused = document.activeElement;
    // Who has folded something, or unfolded it, has done with it: the focus stays on it.
    const folded = focused.matches("details[id] > summary") ? focused.parentElement.id : null;
    const isReading =
      document.hidden ||
      (live.contains(focused) && !folded) ||
      (getSelection().type === "Range" && live.contains(getSelection().anchorNode));
    if (isReading) {
      // What a person is at is not taken away from under their hands.
      return;
    }
    const response = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!response.ok || response.redirected) {
      throw new Error("The overview is not to be had: an error, or a login that has ended.");
    }
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const next = page.querySelector("[data-pgembed-refresh]");
    if (!next || document.activeElement !== focused) {
      return;
    }
    for (const details of live.querySelectorAll("details[id]")) {
      next.querySelector(`#${CSS.escape(details.id)}`)?.toggleAttribute("open", details.open);
    }
    // The heights of sections hardly change, and the browser anchors the scroll position.
    live.replaceChildren(...next.childNodes);
    if (folded) {
      document
        .querySelector(`#${CSS.escape(folded)} > summary`)
        ?.focus({ preventScroll: true });
    }
  }

  // What is shown is old then, also where it looks well: the next refresh takes this away again.
  function tellItIsOld() {
    live.querySelector("[data-pgembed-old]")?.removeAttribute("hidden");
  }

  setInterval(() => refresh().catch(tellItIsOld), seconds * 1000);
});
