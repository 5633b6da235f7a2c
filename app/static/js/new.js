// The page "New classifier": collects photos by class, sends them, and shows the progress.
import { shrink, thumbnail } from "./shrink.js";
import { byId, h, settings, t, withScript } from "./ui.js";

const MIN_PHOTOS = 8;
const AT_A_TIME = 8;
const SHOWN = 8;
const LOOK_MS = 500;
const PHOTO = /\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic|heif)$/i;
const classes = [];

/** A class: its name, its photos, and its place on the page. */
class Kind {
  photos = [];

  constructor(label = "") {
    const take = (input) => {
      input.addEventListener("change", () => {
        this.add([...input.files]);
        input.value = "";
      });
      return input;
    };
    const number = `class-${Date.now()}-${classes.length}`;
    this.label = h("input", { value: label, maxlength: "60", autocomplete: "off", "aria-label": t("class"), placeholder: t("class") });
    this.note = h("p", { class: "note", role: "status" });
    this.shown = h("div", { class: "row" });
    const chooser = (id, text, more, name = "") => h("span", { class: name },
      take(h("input", { class: "chooser", id, type: "file", accept: "image/*,.heic,.heif", ...more })),
      h("label", { class: "button small quiet", for: id }, t(text)));
    const remove = h("button", { class: "button small quiet", type: "button" }, t("remove"));
    remove.addEventListener("click", () => {
      classes.splice(classes.indexOf(this), 1);
      this.item.remove();
      byId("add-class").focus();
      count();
    });
    this.item = h("li", {}, this.label, this.shown, this.note, h("div", { class: "row" },
      chooser(number, "photos", { multiple: true }), chooser(`${number}-camera`, "camera", { capture: "environment" }, "for-touch"), remove));
    this.label.addEventListener("input", count);
    this.item.addEventListener("dragover", () => this.item.classList.add("over"));
    this.item.addEventListener("dragleave", () => this.item.classList.remove("over"));
    classes.push(this);
    byId("classes").append(this.item);
  }

  get name() {
    return this.label.value.trim();
  }

  get lacks() {
    return this.name.toLowerCase() === "other" ? 0 : Math.max(0, MIN_PHOTOS - this.photos.length);
  }

  add(files) {
    const photos = files.filter(({ type, name }) => type.startsWith("image/") || PHOTO.test(name));
    for (const photo of photos) if (this.photos.push(photo) <= SHOWN) this.#show(photo);
    count();
  }

  async #show(photo) {
    const image = h("img", { alt: "", width: 44, height: 44 });
    this.shown.append(image);
    const small = await thumbnail(photo);
    if (small) image.src = URL.createObjectURL(small);
    else image.remove();
  }
}

/** Show what each class has and what is missing. */
function count() {
  for (const kind of classes) {
    kind.note.textContent = t(kind.lacks ? "lacks" : "has", { count: kind.photos.length, more: kind.lacks });
  }
  const isNamed = byId("title").value.trim() && classes.every(({ name }) => name);
  const isFull = classes.filter(({ name }) => name.toLowerCase() !== "other").length > 1 && !classes.some(({ lacks }) => lacks);
  byId("make").disabled = !isNamed || !isFull;
  byId("missing").textContent = isFull ? (isNamed ? "" : t("unnamed")) : t("too_few");
}

/** Add files with their folders' names, each to the class of its folder. */
function addAll(found) {
  for (const kind of classes.filter(({ name, photos }) => !name && !photos.length)) {
    classes.splice(classes.indexOf(kind), 1);
    kind.item.remove();
  }
  for (const folder of new Set(found.map(([name]) => name))) {
    const kind = classes.find(({ name }) => name.toLowerCase() === folder.toLowerCase()) ?? new Kind(folder);
    kind.add(found.filter(([name]) => name === folder).map(([, file]) => file));
  }
  count();
}

/** Return the files below an entry of a drop, each with the name of its folder. */
async function below(entry, folder = "") {
  if (entry.isFile) return [[folder, await new Promise((done, fail) => { entry.file(done, fail); })]];
  const reader = entry.createReader(), found = [];
  for (;;) {
    const some = await new Promise((done, fail) => { reader.readEntries(done, fail); });
    if (!some.length) break;
    for (const inside of some) found.push(...await below(inside, entry.name));
  }
  return found;
}

async function send(address, fields) {
  const body = new FormData();
  for (const [name, value, ...more] of fields) body.append(name, value, ...more);
  const response = await fetch(address, { method: "POST", headers: { Accept: "application/json", "X-Requested-With": "fetch" }, body }).catch(() => null);
  const answer = await response?.json().catch(() => null);
  if (answer?.error) throw new Error(answer.error.message ?? answer.error);
  if (!answer) throw new Error(t("unreachable"));
  return answer;
}

function progress(text, share) {
  byId("doing").textContent = text;
  byId("progress").hidden = !text;
  byId("progress").value = share;
}

async function make() {
  const title = byId("title").value.trim();
  const { name } = await send(settings.urls.new, [["title", title], ...classes.map((kind) => ["label", kind.name])]);
  const address = `${settings.urls.new}/${name}`;
  const all = classes.reduce((sum, { photos }) => sum + photos.length, 0);
  let sent = 0;
  const refused = [];
  for (const [label, { photos }] of classes.entries()) {
    for (let first = 0; first < photos.length; first += AT_A_TIME) {
      const some = photos.slice(first, first + AT_A_TIME);
      const small = await Promise.all(some.map(async (photo) => {
        const { blob, seen } = await shrink(photo, new AbortController().signal);
        return ["file", seen ?? blob, photo.name];
      }));
      refused.push(...(await send(`${address}/photos?label=${label}`, small)).refused);
      sent += some.length;
      progress(t("sending", { sent, all }), sent / all / 4);
    }
  }
  await send(address, [["title", title]]);
  const started = Date.now();
  for (;;) {
    await new Promise((done) => { setTimeout(done, LOOK_MS); });
    const response = await fetch(address, { headers: { Accept: "application/json", "X-Requested-With": "fetch" } }).catch(() => null);
    const state = response?.ok ? await response.json().catch(() => null) : null;
    if (response?.status === 404) throw new Error(t("unreachable"));
    if (!state) continue; // the web app's processes are being replaced
    if (state.error) throw new Error([state.error, ...refused].join(" "));
    if (!state.job) {
      location.href = state.url;
      return;
    }
    const left = state.share > 0.15 ? Math.ceil((Date.now() - started) / 1000 * (1 / state.share - 1)) : 0;
    progress(`${t("making")} ${left ? t("left", { left }) : ""}`, 0.25 + 0.75 * state.share);
  }
}

withScript();
byId("folder").addEventListener("change", ({ target }) => {
  addAll([...target.files].map((file) => [file.webkitRelativePath.split("/").at(-2) ?? "", file]));
  target.value = "";
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  const onto = classes.find(({ item }) => item.contains(event.target));
  onto?.item.classList.remove("over");
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  const found = (await Promise.all(entries.map((entry) => below(entry)))).flat();
  if (onto) onto.add(found.map(([, file]) => file));
  else addAll(found.filter(([folder]) => folder));
});
byId("add-class").addEventListener("click", () => new Kind().label.focus());
byId("title").addEventListener("input", count);
byId("new").addEventListener("submit", async (event) => {
  event.preventDefault();
  byId("refused").hidden = true;
  byId("fields").disabled = true;
  try {
    await make();
  } catch ({ message }) {
    progress("", 0);
    byId("refused").hidden = false;
    byId("refused").textContent = message;
    byId("fields").disabled = false;
  }
});
for (let number = 0; number < 2; number += 1) new Kind();
count();
