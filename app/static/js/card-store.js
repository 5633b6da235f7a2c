// The cards of this tab, stored in its sessionStorage: they survive a refresh and end with the tab.
const KEY = `gourmetgram:cards:${location.pathname}`;
// Browsers allow about five million characters for all pages of a site together.
const MAX_CHARACTERS = 2_000_000;

const read = () => {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
  } catch {
    return [];
  }
};

/** Store the first entries that fit; a browser that stores nothing still shows the cards. */
function write(entries) {
  let left = MAX_CHARACTERS;
  const kept = entries.filter((entry) => (left -= JSON.stringify(entry).length) > 0);
  try {
    if (kept.length) sessionStorage.setItem(KEY, JSON.stringify(kept));
    else sessionStorage.removeItem(KEY);
  } catch {
    // The tab is private, or other pages of this site have filled the storage.
  }
}

/** Add or replace the entry of this id; `content` has the photo as `blob`. `order`: the ids as on the page. */
export async function keep(id, { blob, ...content }, order) {
  const entry = { id, photo: await dataUrl(blob), ...content };
  const position = (stored) => order.indexOf(stored.id);
  write([entry, ...read().filter((other) => other.id !== id)].sort((a, b) => position(a) - position(b)));
}

export const drop = (id) => write(read().filter((entry) => entry.id !== id));

/** Return all entries in the order of the page, with their photos as `blob`. */
export const kept = () => read().map(({ photo, ...content }) => ({ ...content, blob: blobOf(photo) }));

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// The content policy forbids scripts to fetch data: addresses.
function blobOf(address) {
  const [head, data] = address.split(",");
  const type = head.slice("data:".length).split(";")[0];
  return new Blob([Uint8Array.from(atob(data ?? ""), (letter) => letter.charCodeAt(0))], { type });
}
