// The menus of every page: a click elsewhere or Escape closes them.
const close = (but) => {
  for (const open of document.querySelectorAll(".menu[open]")) if (!open.contains(but)) open.open = false;
};
addEventListener("click", ({ target }) => close(target));
addEventListener("keydown", ({ key }) => {
  const inside = document.activeElement.closest(".menu[open]");
  if (key !== "Escape") return;
  close(null);
  inside?.querySelector("summary").focus();
});
