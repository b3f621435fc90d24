"use strict";
// Reload in place: the reader keeps the scroll position, and a failed fetch leaves the last good page.
const every = Number(document.documentElement.dataset.refresh) * 1000;
async function reload() {
  if (!document.hidden) {
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (answer.ok) {
        const next = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.body.replaceWith(next.body);
        document.title = next.title;
      }
    } catch (error) {
      console.warn("rayorch: reload failed", error);
    }
  }
  setTimeout(reload, every);
}
if (every > 0) setTimeout(reload, every);
