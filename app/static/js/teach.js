// The panel "Teach it": sends its forms, and polls the progress of a job.
import { byId } from "./ui.js";

const LOOK_MS = 500;
const OFF = "gourmet.offers-no-corrections";
let latest = 0;

/** Send a form, or ask for the state, and show the panel of the answer. */
async function show(form) {
  const version = (latest += 1);
  const headers = { Accept: "text/html", "X-Requested-With": "fetch" };
  const response = await fetch(byId("teach").dataset.url, { method: form ? "POST" : "GET", body: form, headers }).catch(() => null);
  if (version !== latest) return;
  if (response?.status === 400) location.href = "/"; // the classifier was deleted
  if (!response?.ok) {
    setTimeout(show, 4 * LOOK_MS);
    return;
  }
  const before = byId("teach");
  const focused = before.contains(document.activeElement) && document.activeElement.value;
  const place = [...before.querySelectorAll("select")].indexOf(document.activeElement?.form?.querySelector("select"));
  const { open, dataset } = before, isOpen = byId("taught")?.open;
  before.outerHTML = await response.text();
  byId("teach").open ||= open;
  const now = byId("teach").dataset.version;
  if (now && now !== dataset.version) document.dispatchEvent(new CustomEvent("gourmet:version", { detail: now }));
  if (isOpen && byId("taught")) byId("taught").open = true;
  begin();
  if (!focused) return;
  const selects = byId("teach").querySelectorAll("select");
  const next = place >= 0 ? selects[Math.min(place, selects.length - 1)] : null;
  (next ?? byId("teach").querySelector(`[value="${CSS.escape(focused)}"], summary`)).focus({ preventScroll: true });
}

function begin() {
  const panel = byId("teach");
  panel.addEventListener("submit", (event) => {
    event.preventDefault();
    show(new FormData(event.target, event.submitter));
    for (const button of panel.querySelectorAll("button")) button.disabled = true;
  });
  const offers = byId("offers-corrections");
  if (offers) {
    offers.checked = !localStorage.getItem(OFF);
    const apply = () => document.documentElement.classList.toggle("offers-no-corrections", !offers.checked);
    offers.addEventListener("change", () => {
      if (offers.checked) localStorage.removeItem(OFF);
      else localStorage.setItem(OFF, "1");
      apply();
    });
    apply();
  }
  if ("busy" in panel.dataset) setTimeout(show, LOOK_MS);
}

if (byId("teach")) {
  document.addEventListener("gourmet:corrected", () => show());
  begin();
}
