// The API's documentation: buttons that copy the examples, and forms that send real requests.
import { byId, h, ms, say, t, withScript } from "./ui.js";

const COPIED_SHOWN_MS = 2000;

for (const block of document.querySelectorAll(".docs pre:not([data-reply], [data-curl])")) {
  const button = h("button", { class: "button small quiet copy", type: "button",
    "aria-label": `${t("copy")}: ${block.getAttribute("aria-label")}` }, t("copy"));
  button.addEventListener("click", async () => {
    await copy(block);
    button.textContent = t("copied");
    say(t("copied"));
    setTimeout(() => { button.textContent = t("copy"); }, COPIED_SHOWN_MS);
  });
  block.replaceWith(h("div", { class: "copyable" }, block.cloneNode(true), button));
}

/** Browsers offer the clipboard on secure pages only; elsewhere the text is selected and copied as by hand. */
async function copy({ textContent }) {
  if (navigator.clipboard) return navigator.clipboard.writeText(textContent);
  const field = h("textarea", { class: "spoken" });
  field.value = textContent;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

for (const form of document.querySelectorAll("form.try")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
}

/** The request as the form has it; fields that are empty are left out. */
function request(form) {
  const { method, path } = form.dataset;
  const address = new URL(path, location.href);
  const headers = { Accept: "application/json" };
  let body;
  for (const field of form.querySelectorAll("input, select, textarea")) {
    if (field.type === "file") {
      body = new FormData();
      for (const file of field.files) body.append(field.name, file);
    } else if (field.tagName === "TEXTAREA") {
      headers["Content-Type"] = "application/json";
      body = field.value;
    } else if (field.name && field.value) address.searchParams.set(field.name, field.value);
  }
  const key = byId("api-key")?.value;
  if (key) headers["X-API-Key"] = key;
  return [address, { method: method.toUpperCase(), headers, body }];
}

/** The same request for a terminal; the key is named and not shown. */
function curl(address, { method, headers, body }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const parts = ["curl -s", method === "GET" ? "" : `-X ${method}`,
    ...Object.entries(headers).map(([name, value]) => (name === "X-API-Key" ? '-H "X-API-Key: $KEY"' : `-H ${quoted(`${name}: ${value}`)}`)),
    ...(body instanceof FormData ? [...body].map(([name, file]) => `-F ${quoted(`${name}=@${file.name}`)}`)
      : body ? [`-d ${quoted(body)}`] : []),
    quoted(address.href)];
  return parts.filter(Boolean).join(" ");
}

async function send(form) {
  const sent = form.querySelector("[data-sent]");
  const reply = form.querySelector("[data-reply]");
  const asked = request(form);
  const status = form.querySelector("output");
  const button = form.querySelector("button");
  button.disabled = true;
  status.textContent = t("try_sending");
  sent.hidden = true;
  const started = performance.now();
  try {
    const response = await fetch(...asked);
    const text = await response.text();
    status.textContent = t("try_status", { status: response.status, time: ms(performance.now() - started) });
    reply.textContent = pretty(text);
    form.querySelector("[data-curl]").textContent = curl(...asked);
    sent.hidden = false;
  } catch (error) {
    status.textContent = t("try_failed", { reason: error.message });
  } finally {
    button.disabled = false;
    button.focus({ preventScroll: true });
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // lines of JSON, or the response of a proxy
  }
}

withScript();
