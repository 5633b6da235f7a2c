// The cards of this tab, kept in its sessionStorage: they survive a refresh and end with the tab.
const KEY = `gourmetgram:cards:${location.pathname}`;
// Of the about five million characters that browsers allow for all pages together.
const MOST_CHARACTERS = 2_000_000;

const read = () => {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
  } catch {
    return [];
  }
};

/** Keep the first entries that fit; in a browser that keeps nothing the cards are on the page all the same. */
function write(entries) {
  let left = MOST_CHARACTERS;
  const kept = entries.filter((entry) => (left -= JSON.stringify(entry).length) > 0);
  try {
    if (kept.length) sessionStorage.setItem(KEY, JSON.stringify(kept));
    else sessionStorage.removeItem(KEY);
  } catch {
    // Private browsing, or other pages of this site have filled the storage.
  }
}

/** Add or replace the entry with that id; `content` has the photo as `blob`. `order`: the ids as on the page. */
export async function keep(id, { blob, ...content }, order) {
  const entry = { id, photo: await dataUrl(blob), ...content };
  const place = ({ id: each }) => order.indexOf(each);
  write([entry, ...read().filter((other) => other.id !== id)].sort((a, b) => place(a) - place(b)));
}

export const drop = (id) => write(read().filter((entry) => entry.id !== id));

/** Every entry, in the order of the page, with its photo as `blob`. */
export const kept = () => read().map(({ photo, ...content }) => ({ ...content, blob: blobOf(photo) }));

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// The content policy lets no script fetch a data: address.
function blobOf(address) {
  const [head, data] = address.split(",");
  const type = head.slice("data:".length).split(";")[0];
  return new Blob([Uint8Array.from(atob(data ?? ""), (letter) => letter.charCodeAt(0))], { type });
}
