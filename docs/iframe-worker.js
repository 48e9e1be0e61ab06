// Lets pages that were opened from disk be searched: browsers start no worker from a file,
// so its script runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      const tell = (target, data) => target.dispatchEvent(new MessageEvent("message", { data }));
      inner.postMessage = (data) => tell(this, data);
      const script = inner.document.createElement("script");
      script.src = url;
      const ready = new Promise((done) => (script.onload = done));
      inner.document.body.append(script);
      this.postMessage = (data) => ready.then(() => tell(inner, data));
    }
  };
