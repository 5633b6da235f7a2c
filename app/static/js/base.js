// What every module needs: the page's settings and words, and a short way to build elements.
export const byId = (id) => document.getElementById(id);

export const settings = JSON.parse(byId("settings").textContent);

/** The text of that id, with its {values} put in. */
export const t = (id, values = {}) =>
  settings.texts[id].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));

/** An element with properties or attributes and children; null children are left out. */
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

/** The picture of a class, out of the one sprite file. */
export const icon = (label) => svg("svg", { class: "icon", "aria-hidden": "true" },
  svg("use", { href: `${settings.sprite}#${label.toLowerCase().replace(/[^a-z]+/g, "-")}` }));

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}\u00a0%`;

export const ms = (value) => `${value < 10 ? value.toFixed(1) : value.toFixed(0)} ms`;

export const bytes = (count) => count < 1e6 ? `${Math.max(1, Math.round(count / 1e3))} KB` : `${(count / 1e6).toFixed(1)} MB`;

/** Say something to those who listen instead of looking. */
export function say(text) {
  byId("spoken").textContent = text;
}

/** Hand a file to whoever looks at the page. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
