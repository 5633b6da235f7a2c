// Earlier answers, stored only in this browser: an IndexedDB of bounded size.
import { settings } from "./ui.js";

const NAME = "gourmetgram";
const STORE = "answers";
export const MOST = 60;

let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id", autoIncrement: true });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

async function transaction(mode, work) {
  const store = (await database()).transaction(STORE, mode).objectStore(STORE);
  const request = work(store);
  return new Promise((resolve, reject) => {
    store.transaction.oncomplete = () => resolve(request?.result);
    store.transaction.onerror = store.transaction.onabort = () => reject(store.transaction.error);
  });
}

/** Return all entries, newest first; none if the browser stores nothing. */
export async function all() {
  try {
    return (await transaction("readonly", (store) => store.getAll())).reverse();
  } catch {
    return [];
  }
}

/** Add an answer, and delete the oldest entries beyond the bound. */
export async function add(entry) {
  try {
    await transaction("readwrite", (store) => {
      store.add(entry);
      store.getAllKeys().onsuccess = ({ target: { result: keys } }) => {
        for (const key of keys.slice(0, Math.max(0, keys.length - MOST))) store.delete(key);
      };
    });
  } catch {
    // The window is private or the disk full: the answer is still on the page.
  }
}

/** Replace the answer of the entry with the card `shown`. */
export const change = (shown, answer) => transaction("readwrite", (store) => {
  store.openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (cursor?.value.shown === shown) cursor.update({ ...cursor.value, answer });
    else cursor?.continue();
  };
}).catch(() => {});

export const clear = () => transaction("readwrite", (store) => store.clear()).catch(() => {});

/** Return the columns of an answer, named as in the API. */
export const WORDS = ["verdict", "label", "probability", "sure", "threshold", "relevant", "doubtful", ...(settings.subject ? [settings.subject] : []),
  "candidates", "dish", ...(settings.urls.corrections ? ["you_said"] : []), "model", "version"];

/** Return an entry as a row; those of earlier versions of this page had the answer's fields themselves. */
const rowOf = ({ at, file, answer, ...entry }) => ({ ...entry, ...answer, at, file, model: answer?.model.name ?? entry.model,
  version: answer?.model.version ?? entry.version });

export const asJson = (entries) => JSON.stringify(entries.map(rowOf)
  .map(({ id, shown, thumb, photo, original, system, phases, asked, ...row }) => row), null, 2);

export const historyAsCsv = (entries) => asCsv(entries.map(rowOf), ["at", "file", ...WORDS]);

export function asCsv(entries, columns) {
  const cell = (value) => {
    const text = Array.isArray(value) ? value.map(({ label }) => label).join(" or ") : String(value?.text ?? value ?? "");
    // A spreadsheet would read a file name that begins like this as a formula.
    const safe = typeof value !== "number" && /^[=+\-@\t\r\n]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [columns, ...entries.map((entry) => columns.map((column) => entry[column]))]
    .map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
