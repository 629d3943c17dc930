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
    const isReading =
      document.hidden ||
      live.contains(document.activeElement) ||
      (getSelection().type === "Range" && live.contains(getSelection().anchorNode));
    if (isReading) {
      // What a person is at is not taken away from under their hands.
      return;
    }
    const response = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!response.ok || response.redirected) {
      return;
    }
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const next = page.querySelector("[data-pgembed-refresh]");
    if (!next) {
      return;
    }
    for (const details of live.querySelectorAll("details[id]")) {
      next.querySelector(`#${CSS.escape(details.id)}`)?.toggleAttribute("open", details.open);
    }
    // The heights of sections hardly change, and the browser anchors the scroll position.
    live.replaceChildren(...next.childNodes);
  }

  setInterval(() => refresh().catch(() => {}), seconds * 1000);
});
