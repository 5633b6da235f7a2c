// Find a dish in the list below the food page, by a part of its name or of another name.
const list = document.querySelector(".dishes");

list.querySelector("input").addEventListener("input", ({ target }) => {
  const wanted = target.value.trim().toLowerCase();
  for (const section of list.querySelectorAll("section")) {
    const dishes = [...section.querySelectorAll("li")];
    for (const dish of dishes) dish.hidden = !`${dish.textContent}|${dish.dataset.also}`.toLowerCase().includes(wanted);
    section.hidden = dishes.every((dish) => dish.hidden);
  }
});
