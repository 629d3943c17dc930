"use strict";

// Refreshes the overview. Without JavaScript there is a link that does the same.
document.addEventListener("DOMContentLoaded", () => {
  const live = document.querySelector("[data-pgembed-refresh]");
  if (!live) {
    return;
  }

  async function refresh() {
    const focused = document.activeElement;
    // A summary that was just used keeps the focus, and does not stop the refresh.
    const folded = focused.matches("details[id] > summary") ? focused.parentElement.id : null;
    const isReading =
      document.hidden ||
      (live.contains(focused) && !folded) ||
      (getSelection().type === "Range" && live.contains(getSelection().anchorNode));
    if (isReading) {
      return;
    }
    const response = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!response.ok || response.redirected) {
      throw new Error("The overview cannot be refreshed: an error, or the login has expired.");
    }
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const next = page.querySelector("[data-pgembed-refresh]");
    if (!next || document.activeElement !== focused) {
      return;
    }
    for (const details of live.querySelectorAll("details[id]")) {
      next.querySelector(`#${CSS.escape(details.id)}`)?.toggleAttribute("open", details.open);
    }
    live.replaceChildren(...next.childNodes);
    if (folded) {
      document
        .querySelector(`#${CSS.escape(folded)} > summary`)
        ?.focus({ preventScroll: true });
    }
  }

  // The next successful refresh replaces this notice.
  const showThatItIsOld = () => live.querySelector("[data-pgembed-old]")?.removeAttribute("hidden");

  setInterval(
    () => refresh().catch(showThatItIsOld),
    Number(live.dataset.pgembedRefresh) * 1000,
  );
});
