"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]] };
  const drawn = new Set();
  const players = new Map();
  const stillness = window.matchMedia("(prefers-reduced-motion: reduce)");
  const slowly = 600; // milliseconds per frame where less motion is asked for

  function chosen(id) {
    if (!id) return "";
    const form = document.querySelector('form[data-switch="' + id + '"]');
    return Array.from(form.querySelectorAll("input:checked, select"), (control) => control.value).join("|");
  }

  // Buttons and a slider of the page itself: Plotly's own are drawn, and no keyboard reaches them.
  class Player {
    constructor(place, bar) {
      this.place = place;
      this.frames = [];
      this.playing = false;
      this.timer = 0;
      this.button = bar.querySelector("button");
      this.slider = bar.querySelector("input");
      this.output = bar.querySelector("output");
      this.button.addEventListener("click", () => (this.playing ? this.pause() : this.play()));
      this.slider.addEventListener("input", () => {
        this.pause();
        this.show();
      });
      bar.hidden = false;
    }

    load(variant) {
      this.pause();
      this.frames = (variant && variant.frames) || [];
      this.button.disabled = this.slider.disabled = !this.frames.length;
      const meta = (variant && variant.layout.meta) || {};
      this.milliseconds = meta.milliseconds || 100;
      this.slider.max = Math.max(this.frames.length - 1, 0);
      this.slider.value = meta.frame || 0;
      this.name();
    }

    name() {
      const frame = this.frames[this.slider.value];
      this.output.textContent = frame ? frame.name : "";
      this.slider.setAttribute("aria-valuetext", this.output.textContent);
    }

    show() {
      const now = { mode: "immediate", frame: { duration: 0, redraw: false }, transition: { duration: 0 } };
      this.name();
      // A frame that the next one overtakes is rejected; that is no error.
      return Plotly.animate(this.place, this.frames[this.slider.value], now).catch(() => {});
    }

    play() {
      if (!this.frames.length) return;
      this.playing = true;
      this.button.textContent = "Pause";
      this.step();
    }

    step() {
      const pause = stillness.matches ? slowly : this.milliseconds;
      this.timer = window.setTimeout(() => {
        this.slider.value = (Number(this.slider.value) + 1) % this.frames.length;
        this.show().then(() => this.playing && this.step());
      }, pause);
    }

    pause() {
      window.clearTimeout(this.timer);
      this.playing = false;
      this.button.textContent = "Play";
    }
  }

  function draw(place) {
    const entry = figures[place.id];
    const key = chosen(entry.switch);
    const variant = entry.variants[key];
    const player = players.get(place);
    if (player) player.load(variant);
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
  for (const bar of document.querySelectorAll(".player")) {
    const place = document.getElementById(bar.dataset.plot);
    players.set(place, new Player(place, bar));
  }
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

  // What nobody sees need not move.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (!entry.isIntersecting) players.get(entry.target).pause();
  });
  for (const place of players.keys()) watcher.observe(place);

  for (const form of document.querySelectorAll("form.switch")) {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => {
      for (const place of drawn) if (figures[place.id].switch === form.dataset.switch) draw(place);
    });
  }
  window.addEventListener("beforeprint", () => places.forEach((place) => drawn.has(place) || draw(place)));
})();
