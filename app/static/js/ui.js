// Helpers of all modules: the page's settings and texts, and functions that build elements.
export const byId = (id) => document.getElementById(id);

export const settings = JSON.parse(byId("settings").textContent);

/** Return what a class or a dish is called in the page's language; any other value as it is. */
export const named = (value) => settings.names?.[value] ?? value;

/** Return the text of this id with its {values}. */
export const t = (id, values = {}) =>
  settings.texts[id].replace(/\{(\w+)\}/g, (_, name) => String(named(values[name])));

/** Show the parts that need scripts, and those for touch screens or for a mouse and keys. */
export function withScript() {
  document.documentElement.classList.add("with-script");
  document.documentElement.classList.toggle("with-touch", navigator.maxTouchPoints > 0);
}

/** Make a menu of buttons; a click on a button closes it. */
export function menu(label, ...buttons) {
  const summary = h("summary", { class: "button small quiet", "aria-label": label }, t("more"));
  const details = h("details", { class: "menu", name: "menu" }, summary, h("div", { class: "choices" }, ...buttons));
  for (const button of buttons) {
    button.addEventListener("click", () => {
      details.open = false;
      summary.focus({ preventScroll: true });
    });
  }
  return details;
}

/** Make an element with properties or attributes and children; null children are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Return the picture of a label, or null for a label without one. */
export function icon(label) {
  const id = label.toLowerCase().replace(/[^a-z]+/g, "-");
  return settings.icons.includes(id)
    ? svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `${settings.sprite}#${id}` })) : null;
}

/** Return a name as nodes that may break after `_`, `-`, `/` and `.`, so that lines do not break inside a word. */
export const soft = (text) => named(text).split(/(?<=[_/.-])(?=.)/)
  .flatMap((part, index) => (index ? [document.createElement("wbr"), part] : [part]));

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}\u00a0%`;

export const ms = (value) => `${value < 10 ? value.toFixed(1) : value.toFixed(0)} ${t("ms")}`;

export const bytes = (count) => count < 1e6 ? `${Math.max(1, Math.round(count / 1e3))} ${t("kb")}` : `${(count / 1e6).toFixed(1)} ${t("mb")}`;

/** Show how sure an answer is, by sign, colour and word, and its class with the probability. */
export const mark = ({ sign, colour, word, kind, probability }) => h("p", { class: "marked" },
  h("span", { class: `mark ${colour}` }, h("span", { "aria-hidden": "true" }, sign), ` ${word}`),
  ...(probability === undefined ? [] : [" ", h("span", {}, ...soft(kind)), " ", h("span", { class: "share" }, percent(probability))]));

/** Write an answer on one line: "Green soup: Soup, 93 % (sure)". */
export const inWords = ({ text, kind, word, probability }) =>
  `${[`${text}${kind && ": "}${kind}`, ...(probability === undefined ? [] : [percent(probability)])].join(", ")} (${word})`;

/** Announce something to people who use a screen reader. */
export function say(text) {
  byId("spoken").textContent = text;
}

/** Offer a file for download. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
