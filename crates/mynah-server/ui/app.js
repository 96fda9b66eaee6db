// The inspector: which page an address names.

import { ApiError, post, withQuery } from "./api.js";
import { comparePage } from "./compare-page.js";
import { brief, h, icon, logo, say } from "./dom.js";
import { keys } from "./run-view.js";
import { runPage } from "./run-page.js";
import { NAMES, runsPage } from "./runs-page.js";
import { sessionPage } from "./session-page.js";
import { verifyPage } from "./verify-page.js";

const root = h("main", { class: "page", id: "main", tabindex: "-1" });
const links = [["/", "Runs"], [withQuery("/", { verify: "log" }), "Verification"]].map(([href, words]) => h("a", { href }, words));
document.getElementById("app").replaceChildren(h("header", { class: "site" }, h("a", { class: "brand", href: "/" }, logo(), "Mynah"), h("nav", { "aria-label": "Pages" }, links), h("span", { class: "connection", id: "connection", role: "status", hidden: true }, "Not connected, trying again …"), h("span", { class: "site-note" }, "Press ", h("kbd", {}, "?"), " for keys")), root);

let page = null;
let shown = 0;

/** The parameters that the address of each page may have. */
const KNOWN = new Map([[runPage, ["run", "view", "record"]], [comparePage, ["compare", "with", "replay", "system"]], [sessionPage, ["session"]], [verifyPage, ["verify"]], [runsPage, [...NAMES, "list"]]]);
const odd = h("div", { class: "notices unknown-names" });

/** Says which parameters of the address mean nothing: a filter that is ignored would seem to find everything. */
function drawOdd(query, make) {
  const names = [...new Set(query.keys())].filter((name) => !KNOWN.get(make).includes(name));
  odd.replaceChildren(...(names.length ? [h("p", { class: "banner warn", role: "status" }, icon("more"), h("span", {}, h("strong", {}, `The address has ${names.length === 1 ? "a part" : "parts"} that this page does not know: `), names.slice(0, 5).map((name, place) => [place ? ", " : "", h("code", {}, say(brief(name, 60)))]), names.length === 1 ? ". It is ignored." : ". They are ignored."))] : []));
}

function pageOf(query) {
  if (query.has("run")) return runPage;
  if (query.has("compare")) return comparePage;
  if (query.has("session") && !query.has("list") && query.size === 1) return sessionPage;
  if (query.has("verify")) return verifyPage;
  return runsPage;
}

async function show() {
  const query = new URLSearchParams(location.search);
  const turn = shown += 1;
  const make = pageOf(query);
  drawOdd(query, make);
  // A page that can show another address stays, and with it the focus.
  if (page?.make === make && page.update) {
    try {
      return await page.update(query);
    } catch (error) {
      if (turn !== shown) return;
      console.error(error);
    }
  }
  page?.close();
  page = null;
  for (const link of links) {
    const isHere = (make === runsPage && link === links[0]) || (make === verifyPage && link === links[1]);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  // A page that is left while it loads writes into nothing.
  const place = h("div", {});
  root.replaceChildren(odd, place);
  try {
    const made = await make(place, query, go);
    if (turn !== shown) return made.close();
    page = { ...made, make };
    document.title = `${made.title} · Mynah`;
  } catch (error) {
    if (turn !== shown) return;
    if (!(error instanceof ApiError)) console.error(error);
    place.replaceChildren(error.status === 401 ? login() : failure(error));
  }
}

/** Opens another address of the inspector. */
async function visit(address) {
  history.replaceState({ scroll: scrollY }, "");
  history.pushState(null, "", address);
  scrollTo(0, 0);
  await show();
  // Screen readers and keys begin in the new page, unless it has put the focus somewhere.
  if (document.activeElement === document.body) root.focus({ preventScroll: true });
}

/** Goes to another state of the list. */
const go = (state) => visit(withQuery("/", state));

function failure(error) {
  const words = error.status === 404 ? "Not found" : error.status === 410 ? "Pruned" : error.status === 0 ? "No connection" : "That did not work";
  return h("div", { class: "empty" }, logo(), h("h1", {}, words), h("p", {}, say(error.message.charAt(0).toUpperCase() + error.message.slice(1))), error.code ? h("code", { class: "muted" }, say(error.code)) : null, h("div", { class: "buttons" }, h("button", { type: "button", onclick: show }, "Try again"), h("a", { class: "button", href: "/" }, "All runs")));
}

function login() {
  const token = h("input", { type: "password", autocomplete: "current-password", required: true, id: "token" });
  const told = h("p", { class: "error", role: "alert" });
  return h("form", {
    class: "empty login",
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        await post("/v1/login", { token: token.value });
        show();
      } catch (error) {
        told.replaceChildren(...say(error.message));
      }
    },
  }, logo(), h("h1", {}, "Token"), h("p", {}, "This server asks for the token that it was started with."), h("label", { for: "token", class: "visually-hidden" }, "Token"), token, told, h("button", { class: "primary" }, icon("check"), "Continue"));
}

// Links within the inspector change the page without loading it again.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.hasAttribute("download")) return;
  const to = new URL(link.href, location.href);
  if (to.origin !== location.origin || to.pathname !== "/" || to.hash) return;
  event.preventDefault();
  visit(to.pathname + to.search);
});
history.scrollRestoration = "manual";
addEventListener("popstate", async ({ state }) => {
  await show();
  scrollTo(0, state?.scroll ?? 0);
});
keys((event) => {
  if (event.key === "g") {
    go({});
    return true;
  }
  return page?.key(event) ?? false;
}, () => [...(page?.keys ?? []), ["g", "all runs"]]);
show();
