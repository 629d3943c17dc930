"use strict";

// Refreshes the overview every ten seconds, unless somebody reads or uses it just now.
const live = document.querySelector("[data-pgembed-refresh]");

function isInUse() {
  const selection = getSelection();
  return (
    document.hidden ||
    live.contains(document.activeElement) ||
    (selection.type === "Range" && live.contains(selection.anchorNode))
  );
}

async function refresh() {
  const response = await fetch(location.href);
  if (!response.ok || response.redirected) {
    throw new Error("The overview cannot be refreshed: an error, or the login has expired.");
  }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (!isInUse()) {
    live.replaceChildren(...page.querySelector("[data-pgembed-refresh]").childNodes);
  }
}

// The next successful refresh replaces the notice that the page is out of date.
setInterval(() => {
  if (live && !isInUse()) {
    refresh().catch(() => live.querySelector("[data-pgembed-old]").removeAttribute("hidden"));
  }
}, 10_000);
