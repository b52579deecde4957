"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]] };
  const drawn = new Set();

  function chosen(id) {
    if (!id) return "";
    const form = document.querySelector('form[data-switch="' + id + '"]');
    return Array.from(form.querySelectorAll("input:checked, select"), (control) => control.value).join("|");
  }

  function draw(place) {
    const entry = figures[place.id];
    const key = chosen(entry.switch);
    const variant = entry.variants[key];
    if (!variant) {
      // A case may lack one partition; an empty place says so better than a stale picture.
      Plotly.purge(place);
      place.textContent = "Not in this file for this choice.";
      return;
    }
    if (!drawn.has(place)) place.textContent = "";
    drawn.add(place);
    Plotly.react(place, variant.data, Object.assign({ autosize: true }, variant.layout), config);
  }

  const places = Array.from(document.querySelectorAll(".plot"));
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        observer.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "600px" }
  );
  for (const place of places) observer.observe(place);

  for (const form of document.querySelectorAll("form.switch")) {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => {
      for (const place of drawn) if (figures[place.id].switch === form.dataset.switch) draw(place);
    });
  }
  window.addEventListener("beforeprint", () => places.forEach((place) => drawn.has(place) || draw(place)));
})();
